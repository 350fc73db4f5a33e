// Runs the kit's own daemon on the free GPUs: memory of killed ranks can be
// leased again, whole and usable; ranks and their memory outlive a killed
// daemon; no memory stays in use at the end.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/time/clock.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/private_daemon.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using nlohmann::json;
using Tenants = std::vector<std::unique_ptr<Tenant>>;

// The pool takes 3/4 of a GPU, so that no second pool fits; contexts the rest.
constexpr int kDaemonPartOfGpu = 4;
constexpr Bytes kHostPerGpu = MiB(64);
// Differences below 1/16 of a GPU are noise from other processes' contexts.
constexpr int kNoise = 16;
constexpr absl::Duration kDaemonNap = absl::Milliseconds(20);

class Course {
 public:
  explicit Course(const Surroundings& here)
      : here_(here),
        until_(absl::Now() + here.limit * 0.9),
        patience_(here.limit / 9) {}

  const json& value() const { return value_; }

  absl::Status Run() {
    SLUICE_ASSIGN_OR_RETURN(driver_, device::OpenCudaDriver());
    SLUICE_ASSIGN_OR_RETURN(const auto before, Usage());
    Say("the daemon starts");
    SLUICE_ASSIGN_OR_RETURN(daemon_,
                            PrivateDaemon::Start(PoolsFor(before), until_));
    SLUICE_RETURN_IF_ERROR(RanksAreKilled());
    SLUICE_RETURN_IF_ERROR(DaemonIsKilled());
    SLUICE_RETURN_IF_ERROR(AllEnd());
    return AwaitGivenBack(before);
  }

 private:
  // The log shows where a killed check was.
  static void Say(const char* what) {
    std::puts(what);
    std::fflush(stdout);
  }

  absl::StatusOr<std::vector<device::MemoryUse>> Usage() const {
    std::vector<device::MemoryUse> uses;
    for (size_t i = 0; i < here_.gpus.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(
          uses.emplace_back(),
          driver_->Usage(device::Placement::Gpu(DeviceIndex(i))));
    }
    return uses;
  }

  static PrivateDaemon::Pools PoolsFor(
      const std::vector<device::MemoryUse>& uses) {
    Bytes least = uses[0].total;
    for (const device::MemoryUse& use : uses) {
      least = std::min(least, use.total - use.used);
    }
    return {.gpu = least / kDaemonPartOfGpu * (kDaemonPartOfGpu - 1),
            .host = kHostPerGpu * std::ssize(uses)};
  }

  absl::StatusOr<Tenants> Lease(const char* job) {
    Tenants tenants;
    for (size_t i = 0; i < here_.gpus.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(
          tenants.emplace_back(),
          Tenant::Start({.socket = daemon_->socket(),
                         .job = job,
                         .gpu = static_cast<int>(i),
                         .ranks = static_cast<int>(here_.gpus.size()),
                         .name = fmt::format("GPU {}", here_.gpus[i])}));
    }
    for (const auto& tenant : tenants) {
      SLUICE_RETURN_IF_ERROR(tenant->AwaitFilled(until_));
    }
    return tenants;
  }

  // Killed ranks keep no memory: the next ranks lease the whole pool.
  absl::Status RanksAreKilled() {
    Say("ranks lease and fill all of the pool");
    SLUICE_ASSIGN_OR_RETURN(Tenants first, Lease("first"));
    Say("they are killed, and others lease all of it");
    const double killed = MonotonicSeconds();
    for (const auto& tenant : first) tenant->Kill();
    SLUICE_ASSIGN_OR_RETURN(tenants_, Lease("second"));
    value_["seconds_until_leased_again"] = MonotonicSeconds() - killed;
    return absl::OkStatus();
  }

  absl::Status DaemonIsKilled() {
    Say("the daemon is killed under them");
    SLUICE_ASSIGN_OR_RETURN(const Bytes leased, daemon_->Leased());
    value_["leased_bytes"] = leased.count();
    const double killed = MonotonicSeconds();
    SLUICE_RETURN_IF_ERROR(daemon_->KillDaemon());
    const absl::Time late = absl::Now() + patience_;
    for (auto now = daemon_->Leased(); !now.ok() || *now != leased;
         now = daemon_->Leased()) {
      if (absl::Now() >= late) {
        return absl::InternalError(fmt::format(
            "the next daemon did not take over the leases of {}: {}",
            FormatBytes(leased),
            now.ok() ? "it knows " + FormatBytes(*now)
                     : std::string(now.status().message())));
      }
      absl::SleepFor(kDaemonNap);
    }
    value_["seconds_until_taken_over"] = MonotonicSeconds() - killed;
    for (const auto& tenant : tenants_) {
      SLUICE_RETURN_IF_ERROR(tenant->FindSame(until_));
    }
    Say("ranks of the next daemon are killed, and others lease all of it");
    for (const auto& tenant : tenants_) tenant->Kill();
    SLUICE_ASSIGN_OR_RETURN(tenants_, Lease("third"));
    return absl::OkStatus();
  }

  absl::Status AllEnd() {
    Say("all end");
    for (const auto& tenant : tenants_) {
      SLUICE_RETURN_IF_ERROR(tenant->End(until_));
    }
    return daemon_->End(until_);
  }

  absl::Status AwaitGivenBack(const std::vector<device::MemoryUse>& before) {
    Say("the driver has the memory again");
    const double ended = MonotonicSeconds();
    const absl::Time late = absl::Now() + patience_;
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(const auto now, Usage());
      std::string taken;
      for (size_t i = 0; i < now.size(); ++i) {
        const Bytes more = now[i].used - before[i].used;
        if (more <= before[i].total / kNoise || !taken.empty()) continue;
        taken = fmt::format("GPU {}: {} more are in use than before",
                            here_.gpus[i], FormatBytes(more));
      }
      if (taken.empty()) break;
      if (absl::Now() >= late) {
        return absl::InternalError(
            fmt::format("{}, {} after the daemon and all ranks ended", taken,
                        absl::FormatDuration(patience_)));
      }
      absl::SleepFor(kDaemonNap);
    }
    value_["seconds_until_given_back"] = MonotonicSeconds() - ended;
    return absl::OkStatus();
  }

  const Surroundings& here_;
  const absl::Time until_;
  const absl::Duration patience_;  // of one wait for the daemon or the driver
  json value_ = json::object();
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<PrivateDaemon> daemon_;
  Tenants tenants_;
};

}  // namespace

Result RunDaemon(const Surroundings& here) {
  const std::string expected =
      "what dead ranks had is leased again, live ranks outlive the daemon with "
      "their memory, nothing is left";
  ShowOnly(here.gpus);
  Course course(here);
  const absl::Status status = course.Run();
  return status.ok() ? Passed(course.value(), expected)
                     : Failed(course.value(), expected, status);
}

}  // namespace sluice::verify
