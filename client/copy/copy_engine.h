// Copies between host and GPU memory. Each direction has a stream of its own,
// is gated by grants, and is ordered by tickets only.
//
// How it works. A request is issued in four steps: the copy stream waits for
// the events of the `after` tickets; a grant is taken (one atomic operation if
// bandwidth is available); the copies are enqueued; the ticket's event is
// recorded. Enqueue issues a request itself if nothing holds it back. Other
// requests go to their direction's issuing thread, which takes them in order.
// The compute thread waits for no grant and synchronises no stream; it waits on
// tickets, through events. Such a wait blocks the thread until the ticket's
// event is recorded, so a request that still waits for its grant also blocks
// the thread that waits for its ticket; `stall` counts that time.
//
// Why tickets and not bare events: CUDA treats an event that was not yet
// recorded as complete, so a wait enqueued too early would pass silently. A
// ticket knows whether its event was recorded, and blocks the waiter until
// then.
//
// Large pieces are cut into slices, each with a grant of its own, so that ranks
// on one link take turns. Small pieces share a grant.
//
// Errors: the first failure of a copy is kept. Every later wait returns it, and
// later copies are not made.
// Thread safety: one compute thread per engine calls Enqueue, MarkCompute,
// UseStream, KnowSlack and Wait; stats() is safe from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/copy/grant_gate.h"
#include "kernels/device/driver.h"

namespace sluice::client {

// A point on a stream, reached when everything before it is done. Cheap to
// copy. A default-constructed one is already reached. May outlive the engine.
class Ticket {
 public:
  Ticket() = default;
  // Returns whether the point is reached. Never blocks.
  bool done() const;

 private:
  friend struct TicketAccess;  // client/copy/ticket_state.h
  struct State;
  std::shared_ptr<State> state_;
};

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  Bytes size;
};

struct CopyRequest {
  device::CopyDirection direction = device::CopyDirection::kHostToDevice;
  std::vector<CopyPiece> pieces;  // the memory must outlive the ticket
  std::vector<Ticket> after;
  const char* label = "";  // for the timeline; static storage
};

// One finished request, for the report's timeline. Times are seconds on the
// monotonic clock. The duration is measured by the copy stream's clock; the
// start time is accurate to about the length of a host wait.
struct CopyRecord {
  const char* label;
  device::CopyDirection direction;
  Bytes size;
  double issued_s, started_s, finished_s;
};

// The plan's time from when a copy with that label could start until compute
// needs it, or needs the memory that it frees.
struct CopySlack {
  std::string label;
  absl::Duration slack;
};

struct CopyStats {
  Bytes h2d, d2h;
  absl::Duration grant_wait;  // of the issuing threads
  // How long compute waited for tickets. If compute is a stream, its clock
  // measures this, and a wait counts once the stream is past it.
  absl::Duration stall;
};

class CopyEngine {
 public:
  struct Options {
    device::Driver* driver = nullptr;  // outlives the engine
    DeviceIndex device;
    GrantGate* gate = nullptr;  // null: ungated; outlives the engine
    Bytes slice = MiB(4);       // the largest copy under one grant
    bool record_timeline = false;
  };
  static absl::StatusOr<std::unique_ptr<CopyEngine>> Start(
      const Options& options);
  virtual ~CopyEngine() = default;  // waits for copies in flight

  // From now on, compute is what is enqueued on `native`: a stream of the
  // caller on this device (a CUstream; null is the device's default stream). It
  // must outlive the engine or stay valid until the next call. Unimplemented on
  // sim, where the calling thread computes.
  virtual absl::Status UseStream(void* native) = 0;

  // Replaces the slacks of all labels, for copies that are enqueued from now
  // on. While a copy waits for its grant, the daemon is told its deadline
  // (GrantGate::TellDue). Copies with other labels have no deadline.
  virtual void KnowSlack(std::vector<CopySlack> slack) = 0;

  // Returns a ticket that is reached when all compute enqueued so far is done.
  virtual Ticket MarkCompute() = 0;
  virtual Ticket Enqueue(CopyRequest request) = 0;
  // Makes compute enqueued from now on run after the ticket. Blocks the caller
  // until the ticket's event is recorded (see above), on sim until it is
  // reached. The time that compute waits for the ticket counts as stall.
  virtual absl::Status Wait(const Ticket& ticket) = 0;
  // Blocks until everything enqueued has ended: the end of a run and tests
  // only.
  virtual absl::Status Drain() = 0;

  virtual CopyStats stats() const = 0;
  virtual std::vector<CopyRecord> TakeTimeline() = 0;
};

}  // namespace sluice::client
