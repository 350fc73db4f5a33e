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

absl::Status NoAnswer() {
  return absl::UnavailableError("sluiced does not answer: it is stopping");
}

}  // namespace

absl::Status Administration::OnLoop(std::function<void()> task) {
  if (options_.loop->Call(std::move(task), kCallTimeout)) {
    return absl::OkStatus();
  }
  return NoAnswer();
}

absl::StatusOr<Snapshot> Administration::Read() {
  const auto read = std::make_shared<std::shared_ptr<const Snapshot>>();
  const bool over = options_.loop->CallAndWait(
      [this, read](Loop::Token token) {
        options_.snapshots->Ask(
            {}, [read, token](const auto& answer) { *read = answer->data; });
      },
      kCallTimeout);
  if (!over || *read == nullptr) return NoAnswer();
  return **read;
}

// A core of its own is written: what changed of this one is the handover's.
absl::StatusOr<std::string> Administration::ReadRows() {
  struct Copied {
    CoreState state;
    NodeConfig node;
  };
  const auto copied = std::make_shared<Copied>();
  SLUICE_RETURN_IF_ERROR(OnLoop([=, this] {
    *copied = {core_.Save(), core_.config()};
  }));
  Core core(copied->node, now());
  core.Load(std::move(copied->state));
  return CoreRows().Everything(core);
}

absl::Status Administration::Answers() {
  return OnLoop([] {});
}

absl::Status Administration::WritePolicy(const Policy& policy) {
  if (!options_.write_policy) return absl::OkStatus();
  const absl::Status written = options_.write_policy(policy);
  if (written.ok() || absl::IsDataLoss(written)) return written;
  return Annotate(written, "nothing was changed");
}

absl::Status Administration::Apply(std::function<absl::Status()> apply) {
  struct Attempt {
    std::atomic<bool> taken = false;  // it runs, or must not any more
    std::promise<absl::Status> result;
  };
  const auto attempt = std::make_shared<Attempt>();
  const bool ran = options_.loop->Call(
      [attempt, apply = std::move(apply)] {
        if (!attempt->taken.exchange(true)) attempt->result.set_value(apply());
      },
      kCallTimeout);
  if (!ran && !attempt->taken.exchange(true)) return NoAnswer();
  return attempt->result.get_future().get();
}

absl::Status Administration::CheckCgroup(const std::string& cgroup) const {
  if (cgroup == options_.cgroups.Of(cgroup)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "cgroup '{}' counts as no user of its own: only those one level below "
      "the prefixes of cgroups in [quota] do",
      Printable(cgroup)));
}

absl::Status Administration::ChangePolicy(
    std::function<absl::StatusOr<Policy>()> decide,
    std::function<absl::Status()> apply) {
  const MutexLock lock(policy_mutex_);
  const auto before = std::make_shared<Policy>();
  const auto after = std::make_shared<absl::StatusOr<Policy>>();
  SLUICE_RETURN_IF_ERROR(OnLoop([=, this] {
    *before = core_.policy();
    *after = decide();
  }));
  SLUICE_RETURN_IF_ERROR(after->status());
  // DataLoss: the policy is written, but its folder could not be synced. It is
  // applied, and that status returned.
  const absl::Status written = WritePolicy(**after);
  if (!written.ok() && !absl::IsDataLoss(written)) return written;
  const absl::Status applied = Apply(std::move(apply));
  if (applied.ok()) {
    return written.ok() ? written : Annotate(written, "it is in force");
  }
  // More came to be in use while it was written, or the loop ended.
  const absl::Status back =
      options_.write_policy ? options_.write_policy(*before) : absl::OkStatus();
  if (back.ok() || absl::IsDataLoss(back)) return applied;
  return Annotate(back, fmt::format("it is not in force ({}), but is written "
                                    "for the next daemon",
                                    std::string(applied.message())));
}

absl::StatusOr<Limits> Administration::SetBudget(const BudgetTarget& target,
                                                 std::optional<Bytes> gpu,
                                                 std::optional<Bytes> host,
                                                 const std::string& who) {
  SLUICE_RETURN_IF_ERROR(CheckCgroup(target.cgroup));
  const auto limits = std::make_shared<Limits>();
  SLUICE_RETURN_IF_ERROR(ChangePolicy(
      [=, this] { return core_.PolicyWith(target, gpu, host, now(), who); },
      [=, this] {
        const auto set = core_.SetBudget(target, gpu, host, now(), who);
        if (set.ok()) *limits = *set;
        Execute(core_.Tick(now()));  // what waits may have it now
        return set.status();
      }));
  return *limits;
}

absl::Status Administration::Reserve(PoolId pool, const Principal& whose,
                                     Bytes bytes, const std::string& who) {
  SLUICE_RETURN_IF_ERROR(CheckCgroup(whose.cgroup));
  return ChangePolicy(
      [=, this] {
        return core_.PolicyReserving(pool, whose, bytes, now(), who);
      },
      [=, this] {
        const absl::Status reserved =
            core_.Reserve(pool, whose, bytes, now(), who);
        // What waits for memory may have it now.
        Execute(core_.Tick(now()));
        return reserved;
      });
}

absl::StatusOr<int> Administration::Drain(const std::string& who,
                                          const std::string& reason) {
  const auto drain = std::make_shared<daemon::Drain>();
  const auto ranks = std::make_shared<int>(0);
  SLUICE_RETURN_IF_ERROR(ChangePolicy(
      [=, this] {
        *drain = {who, reason, now()};
        Policy policy = core_.policy();
        policy.drain = *drain;
        return policy;
      },
      [=, this] {
        core_.SetDrain(*drain, now());
        *ranks = core_.ranks();
        Execute({});
        return absl::OkStatus();
      }));
  return *ranks;
}

absl::Status Administration::Undrain() {
  return ChangePolicy(
      [this]() -> absl::StatusOr<Policy> {
        Policy policy = core_.policy();
        if (!policy.drain) {
          return absl::FailedPreconditionError("the node is not drained");
        }
        policy.drain.reset();
        return policy;
      },
      [this] {
        core_.SetDrain(std::nullopt, now());
        Execute(core_.Tick(now()));  // what waits may have it now
        return absl::OkStatus();
      });
}

absl::StatusOr<bool> Administration::SetMeasured(
    std::optional<MeasuredLinks> measured) {
  const auto holds = std::make_shared<bool>(false);
  if (measured) measured->by.live = true;
  SLUICE_RETURN_IF_ERROR(ChangePolicy(
      [=, this]() mutable {
        if (measured) measured->by.at = now();
        return core_.PolicyMeasured(measured);
      },
      [=, this]() mutable {
        if (measured) measured->by.at = now();
        Execute(core_.SetMeasured(measured, now()));
        *holds = !core_.measured_waits();
        return absl::OkStatus();
      }));
  return *holds;
}

absl::StatusOr<Administration::Evicted> Administration::Evict(
    const std::string& job, std::optional<uint32_t> uid, bool kill,
    const std::string& reason) {
  auto done = std::make_shared<Evicted>();
  SLUICE_RETURN_IF_ERROR(OnLoop([=, this] {
    options_.see_copies();
    Core::Evicted evicted = core_.Evict(job, uid, kill, reason, now());
    *done = {evicted.sessions, evicted.processes};
    Execute(std::move(evicted.effects));
  }));
  if (done->sessions == 0 && done->processes == 0) {
    return absl::NotFoundError(fmt::format(
        "no session of a job '{}' to evict: sluicectl jobs lists them", job));
  }
  return *done;
}

}  // namespace sluice::daemon
