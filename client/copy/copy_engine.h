// Copies between host and GPU memory. Each direction has its own stream, which
// copies in order. Grants limit when copies start, and only tickets order the
// two directions.
//
// Issuing a request makes the copy stream wait for the events of the `after`
// tickets, takes a grant, enqueues the copies and records the ticket's event.
// `Enqueue` issues a request that need not wait. All other requests go to their
// direction's issuing thread, which issues them in order.
//
// Waits take tickets and not bare events, because CUDA treats an event that was
// not yet recorded as complete: a wait enqueued too early would pass silently.
// Large pieces are cut into slices, each with its own grant, so that ranks on
// one link alternate. Small pieces share a grant.
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

// A point on a stream, reached when all work enqueued before it is done. A
// default-constructed ticket counts as reached. May outlive the engine.
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
  // Their memory must stay valid until the ticket is reached.
  std::vector<CopyPiece> pieces;
  std::vector<Ticket> after;
  const char* label = "";  // name in the timeline; static storage
};

// One finished request. Times are seconds on the monotonic clock. `started_s`
// and `finished_s` are late by the time that a waiting thread takes to wake up.
struct CopyRecord {
  const char* label;
  device::CopyDirection direction;
  Bytes size;
  double issued_s, started_s, finished_s;
};

// Compute needs a copy with this label, or the memory that it frees, `slack`
// after the copy could start, according to the plan.
struct CopySlack {
  std::string label;
  absl::Duration slack;
};

struct CopyStats {
  Bytes h2d, d2h;
  absl::Duration grant_wait;  // time that issuing threads waited for grants
  // How long compute waited for tickets. If compute runs on a stream, a wait
  // counts once the stream has passed it.
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

  // Makes the engine treat the work on `native`, a CUstream of this device
  // (null: its default stream), as compute from now on. `native` must stay
  // valid until the next call or the engine's end. Unimplemented on sim, where
  // the calling thread computes.
  virtual absl::Status UseStream(void* native) = 0;

  // Replaces the slacks of all labels, for copies that are enqueued from now
  // on. Copies with other labels have no deadline (GrantGate::TellDue).
  virtual void KnowSlack(std::vector<CopySlack> slack) = 0;

  // Returns a ticket that is reached when all compute enqueued so far is done.
  virtual Ticket MarkCompute() = 0;
  virtual Ticket Enqueue(CopyRequest request) = 0;
  // Compute that is enqueued from now on runs after the ticket is reached.
  // Blocks the caller until the ticket's event is recorded, on sim until the
  // ticket is reached.
  virtual absl::Status Wait(const Ticket& ticket) = 0;
  // Blocks until everything enqueued has ended. For the end of a run.
  virtual absl::Status Drain() = 0;

  virtual CopyStats stats() const = 0;
  virtual std::vector<CopyRecord> TakeTimeline() = 0;
};

}  // namespace sluice::client
