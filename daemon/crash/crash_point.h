// Points where a test may kill the daemon: before and after each step of a
// change that the next daemon must find complete or not at all.
//
// Only the tests' program has a watcher; in every other program a point costs a
// load and a branch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

namespace sluice::daemon {

// The names of all points. A group has the points of one kind of change in the
// order in which the daemon passes them.
inline constexpr auto kCrashPoints = std::to_array<std::string_view>(
    {// Making an extent or a session.
     "extent-made", "extent-put", "session-put", "message-sent",
     "barrier-passed", "extent-stored", "session-stored", "session-released",
     // Saving a change of the core's state.
     "change-unsaved", "record-begun", "unpublished", "record-saved",
     "checkpoint-saved", "change-saved", "packet-sent", "effects-done",
     // Ending a session or a lease.
     "socket-shut", "socket-dropped", "process-dropped", "extent-dropped",
     "extent-released",
     // Starting with an earlier daemon's state.
     "state-read", "extents-adopted", "sessions-adopted", "core-loaded",
     "adopted-saved", "taken-over", "ready-told"});

// One of kCrashPoints; any other name does not compile.
struct CrashPoint {
  // NOLINTNEXTLINE(google-explicit-constructor)
  consteval CrashPoint(const char* point) : name(point) {
    if (std::ranges::find(kCrashPoints, name) == kCrashPoints.end()) {
      throw "it is not in kCrashPoints";
    }
  }
  std::string_view name;
};

// Called at each point, on the thread that passes it; may be null. Set before
// threads start.
inline std::atomic<void (*)(std::string_view name)> crash_watcher = nullptr;

// The number of attached ranks, set by the service, so that a watcher can kill
// only a daemon that has ranks.
inline std::atomic<int> crash_ranks = 0;

inline void Pass(CrashPoint point) {
  auto* const watcher = crash_watcher.load(std::memory_order_relaxed);
  if (watcher != nullptr) watcher(point.name);
}

}  // namespace sluice::daemon
