#include "client/copy/copy_engine.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "client/copy/copy_lane.h"
#include "client/copy/ticket_state.h"
#include "kernels/device/stream_timer.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::client {
namespace {

using device::CopyDirection;

absl::Status Check(const CopyRequest& request) {
  for (const CopyPiece& piece : request.pieces) {
    if (piece.size < Bytes(0) || piece.to == nullptr || piece.from == nullptr) {
      return absl::InvalidArgumentError(fmt::format(
          "copy '{}': a piece of {} bytes from {} to {}: sizes must not be "
          "negative, addresses not null",
          request.label, piece.size.count(), fmt::ptr(piece.from),
          fmt::ptr(piece.to)));
    }
  }
  return absl::OkStatus();
}

// Measures how long compute waited for tickets. On sim the calling thread
// computes, so the host's clock measures. On a GPU the compute stream's clock
// measures, and a wait counts once the stream has passed it. Thread safety: any
// thread may call total; the compute thread calls all other methods.
class StallClock {
 public:
  // `compute` is the driver's own compute stream; `driver` outlives the clock.
  StallClock(device::Driver* driver, device::Stream compute)
      : driver_(driver), compute_(compute), timer_(driver) {}

  void UseStream(device::Stream stream) {
    compute_ = stream;
    on_stream_ = true;
  }
  // Call Begin and End around a wait, whether it is enqueued or blocks.
  absl::Status Begin() {
    if (!on_stream_) on_stream_ = driver_->NativeStream(compute_).ok();
    if (*on_stream_) return timer_.Begin(compute_);
    began_s_ = MonotonicSeconds();
    return absl::OkStatus();
  }
  absl::Status End() {
    if (*on_stream_) {
      SLUICE_RETURN_IF_ERROR(timer_.End(compute_));
      TakeEnded();
    } else {
      total_ns_ += static_cast<int64_t>(1e9 * (MonotonicSeconds() - began_s_));
    }
    return absl::OkStatus();
  }
  absl::Duration total() {
    TakeEnded();
    return absl::Nanoseconds(total_ns_.load());
  }

 private:
  // Adds the completed spans to the total. A lost device reports no more spans;
  // waits on it return the fault.
  void TakeEnded() {
    for (;;) {
      const auto span = timer_.Next();
      if (!span.ok() || !span->has_value()) return;
      total_ns_ += absl::ToInt64Nanoseconds((*span)->length);
    }
  }

  device::Driver* const driver_;
  device::Stream compute_;
  std::optional<bool> on_stream_;  // nullopt until the first Begin
  double began_s_ = 0;
  device::StreamTimer timer_;
  std::atomic<int64_t> total_ns_{0};
};

class Engine final : public CopyEngine {
 public:
  explicit Engine(const Options& options)
      : options_(options),
        pool_(std::make_shared<EventPool>(options.driver)),
        compute_(options.driver->ComputeStream(options.device)),
        stall_(options.driver, compute_) {}
  ~Engine() override;

  absl::Status StartLanes();
  absl::Status UseStream(void* native) override {
    SLUICE_ASSIGN_OR_RETURN(
        compute_, options_.driver->AdoptStream(options_.device, native));
    stall_.UseStream(compute_);
    awaited_ = {};
    ++uses_;
    return absl::OkStatus();
  }
  void KnowSlack(std::vector<CopySlack> slack) override {
    slack_ = std::move(slack);
  }
  Ticket MarkCompute() override {
    auto state = NewTicket(compute_, -uses_);
    if (!state) return Ticket();
    const absl::Status status =
        options_.driver->RecordEvent(state->event, compute_);
    fault_.Keep(status);
    state->Set(status.ok() ? State::kRecorded : State::kFailed);
    return TicketAccess::Make(std::move(state));
  }
  Ticket Enqueue(CopyRequest request) override;
  absl::Status Wait(const Ticket& ticket) override {
    const auto& state = TicketAccess::StateOf(ticket);
    if (!state || IsCovered(*state)) return fault_.Get();
    fault_.Keep(stall_.Begin());
    fault_.Keep(WaitOnCompute(*state));
    fault_.Keep(stall_.End());
    return fault_.Get();
  }
  absl::Status Drain() override {
    for (auto& lane : lanes_) lane->AwaitIdle();
    for (const device::Stream stream : streams_) {
      fault_.Keep(options_.driver->SynchronizeStream(stream));
    }
    if (timeline_) fault_.Keep(timeline_->Align());
    return fault_.Get();
  }
  CopyStats stats() const override {
    return {.h2d = lanes_[0]->copied(),
            .d2h = lanes_[1]->copied(),
            .grant_wait = lanes_[0]->grant_wait() + lanes_[1]->grant_wait(),
            .stall = stall_.total()};
  }
  std::vector<CopyRecord> TakeTimeline() override {
    return timeline_ ? timeline_->Take() : std::vector<CopyRecord>();
  }

 private:
  using State = TicketAccess::State;

  // Returns null, and keeps the fault, if no event is available.
  std::shared_ptr<State> NewTicket(device::Stream stream, int64_t number) {
    auto state = TicketAccess::New(pool_, stream, number);
    fault_.Keep(state.status());
    return state.ok() ? *std::move(state) : nullptr;
  }
  // Returns whether compute runs after the ticket without another wait.
  bool IsCovered(const State& state) const {
    return awaited_.Cover(state) ||
           (state.stream == compute_ && state.number == -uses_);
  }
  absl::Status WaitOnCompute(const State& state);

  const Options options_;
  const std::shared_ptr<EventPool> pool_;
  Fault fault_;
  std::unique_ptr<CopyTimeline> timeline_;
  device::Stream compute_;
  int64_t uses_ = 0;         // calls of UseStream
  int64_t requests_ = 0;     // calls of Enqueue
  AwaitedRequests awaited_;  // by compute_
  mutable StallClock stall_;
  std::vector<CopySlack> slack_;  // few entries, one per label
  std::array<device::Stream, 2> streams_;
  std::array<std::unique_ptr<CopyLane>, 2> lanes_;
};

absl::Status Engine::StartLanes() {
  for (device::Stream& stream : streams_) {
    SLUICE_ASSIGN_OR_RETURN(stream,
                            options_.driver->CreateStream(options_.device));
  }
  if (options_.record_timeline) {
    timeline_ = std::make_unique<CopyTimeline>(options_.driver, streams_);
    SLUICE_RETURN_IF_ERROR(timeline_->Align());
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i] = std::make_unique<CopyLane>(
        options_,
        i == 0 ? CopyDirection::kHostToDevice : CopyDirection::kDeviceToHost,
        streams_[i], pool_, &fault_, timeline_.get());
  }
  return absl::OkStatus();
}

Engine::~Engine() {
  // Stop both lanes first: joining one may wait for a ticket of the other.
  for (auto& lane : lanes_) {
    if (lane) lane->Stop();
  }
  for (auto& lane : lanes_) lane.reset();
  for (const device::Stream stream : streams_) {
    if (stream.value() == 0) continue;
    options_.driver->SynchronizeStream(stream).IgnoreError();
  }
  timeline_.reset();
  pool_->Close();
  for (const device::Stream stream : streams_) {
    if (stream.value() == 0) continue;
    options_.driver->DestroyStream(stream).IgnoreError();
  }
}

Ticket Engine::Enqueue(CopyRequest request) {
  fault_.Keep(Check(request));
  const bool in = request.direction == CopyDirection::kHostToDevice;
  CopyLane& to = *lanes_[in ? 0 : 1];
  auto state = NewTicket(to.stream(), ++requests_);
  if (!state) return Ticket();
  Ticket ticket = TicketAccess::Make(state);
  std::optional<absl::Duration> slack;
  for (const CopySlack& each : slack_) {
    if (!slack && each.label == request.label) slack = each.slack;
  }
  to.Push(std::move(request), std::move(state), slack);
  return ticket;
}

absl::Status Engine::WaitOnCompute(const State& state) {
  if (state.AwaitIssued() == State::kFailed) return fault_.Get();
  if (state.pool->closed()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      options_.driver->StreamWaitEvent(compute_, state.event));
  awaited_.Add(state);
  return absl::OkStatus();
}

}  // namespace

bool Ticket::done() const {
  // On a lost device nothing is in flight; Wait returns the fault.
  return !state_ || state_->IsReached(/*if_unknown=*/true);
}

absl::StatusOr<std::unique_ptr<CopyEngine>> CopyEngine::Start(
    const Options& options) {
  if (options.driver == nullptr || options.slice <= Bytes(0)) {
    return absl::InvalidArgumentError(
        fmt::format("a copy engine needs a driver and a positive slice, not {}",
                    options.slice.count()));
  }
  auto engine = std::make_unique<Engine>(options);
  SLUICE_RETURN_IF_ERROR(engine->StartLanes());
  return engine;
}

}  // namespace sluice::client
