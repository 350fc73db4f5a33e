// Copies between host and GPU memory, each direction on its own stream, gated
// by grants, ordered by tickets only.
//
// How it works. To issue a request is to make the copy stream wait for the
// events of its `after` tickets, to take a grant (one atomic operation when
// bandwidth is there), to enqueue the copies and record the ticket's event.
// Enqueue does so itself where nothing holds the request back; what has to wait
// goes to its direction's issuing thread, which takes requests in order. The
// compute thread waits for no grant and synchronises no stream; it waits on
// tickets, through events. That wait holds the thread back until
// the ticket's event is recorded, so a request that still waits for its grant
// holds back the thread that waits for its ticket; `stall` counts that wait.
//
// Why tickets and not bare events: an event that was not yet recorded counts
// as complete in CUDA, so a wait enqueued too early would pass silently. A
// ticket knows whether its event was recorded and holds the waiter back until
// it was.
//
// Large pieces are cut to slices, each with a grant of its own, so that ranks
// on one link take turns; small ones share a grant.
//
// Errors: the first failure of a copy is kept; every later wait returns it,
// and later copies are not made.
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

// A point on a stream: "everything before it is done". Cheap to copy; default
// constructed it is already reached. Outlives the engine harmlessly.
class Ticket {
 public:
  Ticket() = default;
  // Reached already? Never blocks.
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

// One finished request, for the report's timeline. Times: seconds on the
// monotonic clock. From start to end by the clock of the stream that copies;
// when it started to about what a host wait takes.
struct CopyRecord {
  const char* label;
  device::CopyDirection direction;
  Bytes size;
  double issued_s, started_s, finished_s;
};

// The time from when a copy with that label could start until compute needs it,
// or the memory that it frees, by a plan.
struct CopySlack {
  std::string label;
  absl::Duration slack;
};

struct CopyStats {
  Bytes h2d, d2h;
  absl::Duration grant_wait;  // of issuing threads
  // How long compute waited for tickets. Where compute is a stream, by the
  // stream's clock: a wait counts when the stream is past it.
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

  // Compute is what is enqueued on `native` from now on: a stream of the
  // caller's on this device (a CUstream; null is the device's default stream),
  // which must outlive the engine or the next call. Unimplemented on sim, where
  // the calling thread computes.
  virtual absl::Status UseStream(void* native) = 0;

  // Replaces the slacks of all labels, for copies that are enqueued from now
  // on. While a copy waits for its grant, the daemon is told by when it is
  // needed (GrantGate::TellDue). Copies with other labels have no deadline.
  virtual void KnowSlack(std::vector<CopySlack> slack) = 0;

  // A ticket reached when all compute enqueued so far is done.
  virtual Ticket MarkCompute() = 0;
  virtual Ticket Enqueue(CopyRequest request) = 0;
  // Compute enqueued from now on runs after the ticket. Blocks the caller
  // until the ticket's event is recorded (see above), on sim until it is
  // reached. What compute waits for it is counted as stall.
  virtual absl::Status Wait(const Ticket& ticket) = 0;
  // Host wait for everything enqueued: the end of a run and tests only.
  virtual absl::Status Drain() = 0;

  virtual CopyStats stats() const = 0;
  virtual std::vector<CopyRecord> TakeTimeline() = 0;
};

}  // namespace sluice::client
