// Asks the device how much memory of the pools is held outside leases
// (core/pool/held_outside.h).
//
// On `sim` that is memory that ranks of a killed daemon still reach. It can
// only shrink: the device is asked at the start, and again until it is 0. On
// `cuda` the device cannot tell which process holds what, and is asked all the
// time. A GPU that does not answer is logged once, and keeps its last answer
// until it answers again.
//
// A separate thread asks, since an answer may take as long as the kernel likes;
// it uses at most 1/50 of a core.
//
// Thread safety: loop's thread only.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "daemon/core/pool/held_outside.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "kernels/device/driver.h"

namespace sluice::daemon {

class OutsideWatch {
 public:
  static constexpr absl::Duration kAskEvery = absl::Milliseconds(250);
  static constexpr absl::Duration kFirst = absl::Seconds(2);

  // The pointers must outlive this object; `known` runs on the loop's thread.
  OutsideWatch(device::Driver* driver, const NodeConfig& node, Loop* loop,
               std::function<void(HeldOutside)> known);

  // Asks before the loop runs, and waits for the answer for at most kFirst.
  void Start();
  // Replaces Start after a takeover: the saved figure counts until the device
  // has answered, so that waiting ranks are served first.
  void GoOn() { AskAfter(kAskEvery); }
  void Run(std::function<void()> task) { thread_.Run(std::move(task)); }
  // Returns false if a device call still ran after `patience`.
  bool Finish(absl::Duration patience) { return thread_.Finish(patience); }

 private:
  struct Answer {
    absl::StatusOr<OutsideAnswers::Answer> held;
    absl::Duration cpu_time;
  };
  void AskAfter(absl::Duration delay);
  // Runs on the thread.
  Answer Ask() const;
  absl::StatusOr<OutsideAnswers::Answer> AskDevice() const;
  void Tell(const Answer& answer);
  // Logs a failure at `place` (empty: everywhere) when it begins.
  void Say(const std::string& place, const absl::Status& failure);

  device::Driver* const driver_;
  Loop* const loop_;
  const std::function<void(HeldOutside)> known_;
  std::vector<DeviceIndex> gpus_;
  OutsideAnswers answers_;
  bool asking_ = false;
  bool held_ = false;            // memory was held outside at the last answer
  std::set<std::string> fails_;  // places that did not answer last time
  TaskThread thread_;            // last: its tasks use the others
};

}  // namespace sluice::daemon
