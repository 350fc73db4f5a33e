#include "client/copy/copy_lane.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "proto/base/clock.h"
#include "proto/base/poison.h"

namespace sluice::client {
namespace {

// The kernel's default timer slack would add 50 us to naps of 5 us.
constexpr unsigned long kTimerSlackNs = 1'000;
// The interval of checks whether a queued copy can start. The daemon raises
// limits every 2 ms.
constexpr std::chrono::microseconds kLook{100};
// The interval of checks whether copies that owe their grants can start.
constexpr std::chrono::milliseconds kLookOfOwed{1};

Bytes SizeOf(const CopyRequest& request) {
  Bytes size;
  for (const CopyPiece& piece : request.pieces) size += piece.size;
  return size;
}

}  // namespace

CopyLane::CopyLane(const CopyEngine::Options& options,
                   device::CopyDirection direction, device::Stream stream,
                   std::shared_ptr<EventPool> pool, Fault* fault,
                   CopyTimeline* timeline)
    : options_(options),
      direction_(direction),
      stream_(stream),
      pool_(std::move(pool)),
      fault_(fault),
      timeline_(timeline),
      thread_([this] { Run(); }) {
  const bool h2d = direction == device::CopyDirection::kHostToDevice;
  pthread_setname_np(thread_.native_handle(),
                     h2d ? "sluice-h2d" : "sluice-d2h");
}

void CopyLane::Push(CopyRequest request,
                    std::shared_ptr<TicketAccess::State> ticket,
                    std::optional<absl::Duration> slack) {
  Item item{std::move(request), std::move(ticket),
            timeline_ ? MonotonicSeconds() : 0, slack, std::nullopt};
  const std::optional<Bytes> granted = GrantNow(item, SizeOf(item.request));
  if (granted) return Issue(item, *granted);
  if (slack && options_.gate != nullptr && AreReached(item.request.after)) {
    item.due = options_.gate->now() + *slack;
  }
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(item));
  }
  changed_.NotifyAll();
}

std::optional<Bytes> CopyLane::GrantNow(const Item& item, Bytes size) {
  if (fault_->set()) return std::nullopt;
  {
    const MutexLock lock(mutex_);
    if (!queue_.empty()) return std::nullopt;
  }
  for (const Ticket& ticket : item.request.after) {
    const auto& state = TicketAccess::StateOf(ticket);
    if (state && state->stream != stream_ && !state->issued()) {
      return std::nullopt;
    }
  }
  const Bytes first = std::min(size, options_.slice);
  if (options_.gate == nullptr || size == Bytes(0)) return first;
  if (IsLimited()) {
    if (!CanStart(item.request)) {
      if (Owe(item.request, size)) return size;
      return std::nullopt;
    }
    // A request larger than a slice goes through the queue, so that it
    // alternates with other ranks slice by slice.
    if (size > first || !ahead_.HasRoom()) return std::nullopt;
  }
  if (!options_.gate->TryAcquire(GrantDirection(), first)) return std::nullopt;
  return first;
}

bool CopyLane::CanStart(const CopyRequest& request) {
  const MutexLock lock(mutex_);
  TakeOwed();
  return owed_.empty() && AreReached(request.after);
}

bool CopyLane::Owe(const CopyRequest& request, Bytes size) {
  const MutexLock lock(mutex_);
  if (!options_.gate->HasRoom(GrantDirection(), owed_bytes_ + size)) {
    return false;
  }
  if (owed_.empty()) changed_.NotifyAll();
  owed_.push_back({request.after, size});
  owed_bytes_ += size;
  return true;
}

void CopyLane::TakeOwed() {
  while (!owed_.empty() && AreReached(owed_.front().after)) {
    options_.gate->Take(GrantDirection(), owed_.front().size);
    owed_bytes_ -= owed_.front().size;
    owed_.pop_front();
  }
}

Bytes CopyLane::AwaitTurn(const CopyRequest& request, Bytes size) {
  while (size > Bytes(0) && IsLimited() && !stopping_ && !CanStart(request)) {
    if (Owe(request, size)) return size;
    std::this_thread::sleep_for(kLook);
  }
  return Bytes(0);
}

bool CopyLane::AreReached(const std::vector<Ticket>& after) const {
  return std::ranges::all_of(after, [this](const Ticket& ticket) {
    const auto& state = TicketAccess::StateOf(ticket);
    return !state || state->stream == stream_ || state->IsReached();
  });
}

void CopyLane::TellDue(const Item& item, Bytes size) {
  if (options_.gate == nullptr || !item.slack) return;
  options_.gate->TellDue(
      GrantDirection(), size,
      item.due ? *item.due : options_.gate->now() + *item.slack);
}

void CopyLane::Run() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && queue_.empty()) {
      TakeOwed();
      if (owed_.empty()) {
        changed_.Wait(mutex_);
      } else {
        changed_.WaitUntil(mutex_,
                           std::chrono::steady_clock::now() + kLookOfOwed);
      }
    }
    if (queue_.empty()) return;
    // Valid without the lock, because push_back does not move the front.
    const Item& item = queue_.front();
    lock.Unlock();
    Issue(item, /*granted=*/Bytes(0));
    lock.Lock();
    queue_.pop_front();
    if (queue_.empty()) changed_.NotifyAll();
  }
}

void CopyLane::Issue(const Item& item, Bytes granted) {
  const absl::Status status = TryIssue(item, granted);
  if (!status.ok()) {
    fault_->Keep(status);
    item.ticket->Set(TicketAccess::State::kFailed);
  }
}

absl::Status CopyLane::TryIssue(const Item& item, Bytes granted) {
  SLUICE_RETURN_IF_ERROR(AwaitTickets(item.request));
  if (PoisonsBuffers()) SLUICE_RETURN_IF_ERROR(Poison(item.request));
  const Bytes size = SizeOf(item.request);
  const bool timed = timeline_ != nullptr && size > Bytes(0);
  if (granted == Bytes(0)) granted = AwaitTurn(item.request, size);
  const bool waits = granted == Bytes(0);
  if (waits) TellDue(item, size);
  const absl::Status copied = CopyPieces(item.request, size, granted, timed);
  if (waits && item.slack && options_.gate != nullptr) {
    options_.gate->ForgetDue(GrantDirection());
  }
  SLUICE_RETURN_IF_ERROR(copied);
  if (timed) {
    SLUICE_RETURN_IF_ERROR(timeline_->End(
        {item.request.label, direction_, size, item.issued_s, 0, 0}));
  }
  SLUICE_RETURN_IF_ERROR(Record(*item.ticket));
  if (IsLimited()) ahead_.Add(TicketAccess::Make(item.ticket));
  return absl::OkStatus();
}

absl::Status CopyLane::AwaitTickets(const CopyRequest& request) {
  for (const Ticket& ticket : request.after) {
    const auto& state = TicketAccess::StateOf(ticket);
    if (!state || state->stream == stream_ || awaited_.Cover(*state)) continue;
    if (state->AwaitIssued() == TicketAccess::State::kFailed) continue;
    if (state->pool->closed()) continue;
    SLUICE_RETURN_IF_ERROR(
        options_.driver->StreamWaitEvent(stream_, state->event));
    awaited_.Add(*state);
  }
  // After a failed copy, later copies would move bytes that never arrived.
  return fault_->Get();
}

void CopyLane::TakeGrant(Bytes size) {
  if (options_.gate == nullptr) return;
  if (IsLimited()) ahead_.AwaitRoom(stopping_);
  const absl::Duration waited =
      options_.gate->Acquire(GrantDirection(), size, &stopping_);
  grant_wait_ns_ += absl::ToInt64Nanoseconds(waited);
}

absl::Status CopyLane::CopyPieces(const CopyRequest& request, Bytes left,
                                  Bytes granted, bool timed) {
  for (const CopyPiece& piece : request.pieces) {
    for (Bytes done; done < piece.size;) {
      if (granted == Bytes(0)) {
        granted = std::min(options_.slice, left);
        TakeGrant(granted);
      }
      if (std::exchange(timed, false)) {
        SLUICE_RETURN_IF_ERROR(timeline_->Begin(direction_));
      }
      const Bytes size = std::min(granted, piece.size - done);
      SLUICE_RETURN_IF_ERROR(options_.driver->CopyAsync(
          piece.to + done.count(), piece.from + done.count(), size, direction_,
          stream_));
      done += size;
      granted -= size;
      left -= size;
      copied_ += size.count();
      // Marks each slice's end but the last, which the request's ticket marks.
      if (granted == Bytes(0) && left > Bytes(0) && IsLimited()) {
        SLUICE_ASSIGN_OR_RETURN(
            auto end, TicketAccess::New(pool_, stream_, /*number=*/0));
        SLUICE_RETURN_IF_ERROR(Record(*end));
        ahead_.Add(TicketAccess::Make(std::move(end)));
      }
    }
  }
  return absl::OkStatus();
}

// Fills the targets with NaN, so that a read that comes too early does not find
// the buffer's previous contents.
absl::Status CopyLane::Poison(const CopyRequest& request) {
  for (const CopyPiece& piece : request.pieces) {
    if (piece.size <= Bytes(0)) continue;  // CopyAsync reports the error
    SLUICE_RETURN_IF_ERROR(options_.driver->FillAsync(piece.to, std::byte{0xff},
                                                      piece.size, stream_));
  }
  return absl::OkStatus();
}

CopyTimeline::CopyTimeline(device::Driver* driver,
                           std::array<device::Stream, 2> streams)
    : lanes_{std::make_unique<Lane>(driver, streams[0]),
             std::make_unique<Lane>(driver, streams[1])} {}

absl::Status CopyTimeline::Align() {
  for (const auto& lane : lanes_) {
    {
      // Collects the ended copies first, so that the old alignment dates them.
      const MutexLock lock(mutex_);
      TakeEnded(*lane);
    }
    SLUICE_RETURN_IF_ERROR(lane->timer.Align(lane->stream));
  }
  return absl::OkStatus();
}

absl::Status CopyTimeline::End(const CopyRecord& record) {
  Lane& lane = LaneOf(record.direction);
  const MutexLock lock(mutex_);
  SLUICE_RETURN_IF_ERROR(lane.timer.End(lane.stream));
  lane.pending.push_back(record);
  TakeEnded(lane);
  return absl::OkStatus();
}

void CopyTimeline::TakeEnded(Lane& lane) {
  while (!lane.pending.empty()) {
    const auto span = lane.timer.Next();
    if (!span.ok() || !span->has_value()) return;
    CopyRecord& record = lane.pending.front();
    record.started_s = (*span)->start_s;
    record.finished_s =
        record.started_s + absl::ToDoubleSeconds((*span)->length);
    ended_.push_back(record);
    lane.pending.pop_front();
  }
}

}  // namespace sluice::client
