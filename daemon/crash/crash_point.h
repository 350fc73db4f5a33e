// Points where a test may kill the daemon: before and after each step of a
// change that the next daemon must find complete or not at all.
//
// Only the tests' program has a listener; in every other program a point costs
// a load and a branch.
#pragma once

#include <array>
#include <atomic>

namespace sluice::daemon {

// The steps of each change, in order: make, pass to the store, store, record,
// send.
enum class CrashPoint {
  // Making an extent or a session.
  kExtentMade,
  kExtentPut,
  kSessionPut,
  kMessageSent,
  kBarrierPassed,
  kExtentStored,
  kSessionStored,
  kSessionReleased,
  // Saving a change of the core's state.
  kChangeUnsaved,
  kRecordBegun,
  kUnpublished,
  kRecordSaved,
  kCheckpointSaved,
  kChangeSaved,
  kPacketSent,
  kEffectsDone,
  // Ending a session or a lease.
  kSocketShut,
  kSocketDropped,
  kProcessDropped,
  kExtentDropped,
  kExtentReleased,
  // Starting with an earlier daemon's state.
  kStateRead,
  kExtentsAdopted,
  kSessionsAdopted,
  kCoreLoaded,
  kAdoptedSaved,
  kTakenOver,
  kReadyTold,
};

struct NamedCrashPoint {
  CrashPoint point;
  const char* name;
};

inline constexpr auto kCrashPoints = std::to_array<NamedCrashPoint>({
    {CrashPoint::kExtentMade, "extent-made"},
    {CrashPoint::kExtentPut, "extent-put"},
    {CrashPoint::kSessionPut, "session-put"},
    {CrashPoint::kMessageSent, "message-sent"},
    {CrashPoint::kBarrierPassed, "barrier-passed"},
    {CrashPoint::kExtentStored, "extent-stored"},
    {CrashPoint::kSessionStored, "session-stored"},
    {CrashPoint::kSessionReleased, "session-released"},
    {CrashPoint::kChangeUnsaved, "change-unsaved"},
    {CrashPoint::kRecordBegun, "record-begun"},
    {CrashPoint::kUnpublished, "unpublished"},
    {CrashPoint::kRecordSaved, "record-saved"},
    {CrashPoint::kCheckpointSaved, "checkpoint-saved"},
    {CrashPoint::kChangeSaved, "change-saved"},
    {CrashPoint::kPacketSent, "packet-sent"},
    {CrashPoint::kEffectsDone, "effects-done"},
    {CrashPoint::kSocketShut, "socket-shut"},
    {CrashPoint::kSocketDropped, "socket-dropped"},
    {CrashPoint::kProcessDropped, "process-dropped"},
    {CrashPoint::kExtentDropped, "extent-dropped"},
    {CrashPoint::kExtentReleased, "extent-released"},
    {CrashPoint::kStateRead, "state-read"},
    {CrashPoint::kExtentsAdopted, "extents-adopted"},
    {CrashPoint::kSessionsAdopted, "sessions-adopted"},
    {CrashPoint::kCoreLoaded, "core-loaded"},
    {CrashPoint::kAdoptedSaved, "adopted-saved"},
    {CrashPoint::kTakenOver, "taken-over"},
    {CrashPoint::kReadyTold, "ready-told"},
});

// Called at each point, on the thread that passes it; may be null. Set before
// threads start.
inline std::atomic<void (*)(CrashPoint)> crash_watcher = nullptr;

// The number of attached ranks, set by the service, so that a watcher can kill
// only a daemon that has some.
inline std::atomic<int> crash_ranks = 0;

inline void Pass(CrashPoint point) {
  auto* const watcher = crash_watcher.load(std::memory_order_relaxed);
  if (watcher != nullptr) watcher(point);
}

}  // namespace sluice::daemon
