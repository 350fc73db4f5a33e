#include "daemon/service/admin/administration.h"

#include <fmt/format.h>

#include <atomic>
#include <future>
#include <memory>
#include <utility>

#include "daemon/state/core_rows.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(1);

absl::Status NoAnswerUnless(bool answered) {
  if (answered) return absl::OkStatus();
  return absl::UnavailableError("sluiced does not answer: it is stopping");
}

}  // namespace

absl::Status Administration::OnLoop(std::function<void()> task) {
  return NoAnswerUnless(options_.loop->Call(std::move(task), kCallTimeout));
}

absl::StatusOr<Snapshot> Administration::Read() {
  const auto read = std::make_shared<std::shared_ptr<const Snapshot>>();
  const bool over = options_.loop->CallAndWait(
      [this, read](Loop::Token token) {
        options_.snapshots->Ask(
            {}, [read, token](const auto& answer) { *read = answer->data; });
      },
      kCallTimeout);
  SLUICE_RETURN_IF_ERROR(NoAnswerUnless(over && *read != nullptr));
  return **read;
}

// Writes the rows of a copy of the core, because only Handover may take the
// changes of the core itself.
absl::StatusOr<std::string> Administration::ReadRows() {
  const auto copied = std::make_shared<std::pair<CoreState, NodeConfig>>();
  SLUICE_RETURN_IF_ERROR(OnLoop([=, this] {
    *copied = {core_.Save(), core_.config()};
  }));
  Core core(copied->second, now());
  core.Load(std::move(copied->first));
  return CoreRows().Everything(core);
}

absl::StatusOr<Administration::Applied> Administration::ApplyOnLoop(
    const PolicyChange& change) {
  struct Attempt {
    // Set when the task starts, or when it must not start any more.
    std::atomic<bool> taken = false;
    std::promise<absl::StatusOr<Applied>> result;
  };
  const auto attempt = std::make_shared<Attempt>();
  const auto apply = [this, change]() -> absl::StatusOr<Applied> {
    SLUICE_ASSIGN_OR_RETURN(Effects effects, core_.Apply(change, now()));
    Applied applied{.ranks = core_.sessions().ranks(),
                    .links_wait = core_.live_policy().measured_waits()};
    if (const auto* budget = std::get_if<BudgetChange>(&change)) {
      SLUICE_ASSIGN_OR_RETURN(applied.limits,
                              core_.ledger().budgets().Get(budget->target));
    }
    options_.execute(std::move(effects));
    return applied;
  };
  const bool ran = options_.loop->Call(
      [attempt, apply] {
        if (!attempt->taken.exchange(true)) attempt->result.set_value(apply());
      },
      kCallTimeout);
  SLUICE_RETURN_IF_ERROR(NoAnswerUnless(ran || attempt->taken.exchange(true)));
  return attempt->result.get_future().get();
}

absl::Status Administration::CheckCgroup(const PolicyChange& change) const {
  std::string cgroup;
  if (const auto* budget = std::get_if<BudgetChange>(&change)) {
    cgroup = budget->target.cgroup;
  } else if (const auto* reserved = std::get_if<ReservationChange>(&change)) {
    cgroup = reserved->whose.cgroup;
  }
  if (cgroup == options_.cgroups.Of(cgroup)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "cgroup '{}' does not count as a user of its own: only cgroups one level "
      "below the prefixes of cgroups in [quota] do",
      Printable(cgroup)));
}

absl::StatusOr<Administration::Applied> Administration::Apply(
    const PolicyChange& change) {
  SLUICE_RETURN_IF_ERROR(CheckCgroup(change));
  const MutexLock lock(policy_mutex_);
  const auto before = std::make_shared<Policy>();
  const auto after = std::make_shared<absl::StatusOr<Policy>>();
  SLUICE_RETURN_IF_ERROR(OnLoop([=, this] {
    *before = core_.live_policy().policy();
    *after = core_.live_policy().With(change, now());
  }));
  SLUICE_RETURN_IF_ERROR(after->status());
  const auto write = [this](const Policy& policy) {
    return options_.write_policy ? options_.write_policy(policy)
                                 : absl::OkStatus();
  };
  const absl::Status written = write(**after);
  // After DataLoss (the folder is not synced) the change is applied too.
  if (!written.ok() && !absl::IsDataLoss(written)) {
    return Annotate(written, "nothing was changed");
  }
  const auto applied = ApplyOnLoop(change);
  if (applied.ok()) {
    if (written.ok()) return applied;
    return Annotate(written, "it is in force");
  }
  // The change was refused, since memory use grew, or the loop did not answer.
  const absl::Status back = write(*before);
  if (back.ok() || absl::IsDataLoss(back)) return applied;
  return Annotate(back, fmt::format("it is not in force ({}), but is written "
                                    "for the next daemon",
                                    std::string(applied.status().message())));
}

absl::StatusOr<Core::Evicted> Administration::Evict(const std::string& job,
                                                    std::optional<uint32_t> uid,
                                                    bool kill,
                                                    const std::string& reason) {
  auto done = std::make_shared<Core::Evicted>();
  SLUICE_RETURN_IF_ERROR(OnLoop([=, this] {
    options_.see_copies();
    *done = core_.Evict(job, uid, kill, reason, now());
    options_.execute(std::exchange(done->effects, {}));
  }));
  if (done->sessions == 0 && done->processes == 0) {
    return absl::NotFoundError(fmt::format(
        "no session of a job '{}' to evict: sluicectl jobs lists them", job));
  }
  return *done;
}

}  // namespace sluice::daemon
