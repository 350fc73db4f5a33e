#include "client/ctl/bandwidth/copy_meter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

using device::CopyDirection;

// Enough that what a copy costs beside its bytes does not show, and little
// enough that slow links count several.
constexpr Bytes kMostCopy = MiB(4);
constexpr Bytes kMostMemory = MiB(32);  // of each GPU, and of host memory
// Copies that a stream has at once: a fast link takes longer over them than the
// meter is away from it.
constexpr size_t kAhead = 6;
constexpr int kLeastCopies = 8;  // that a number is made of
constexpr absl::Duration kWarmUp = absl::Milliseconds(200);
constexpr absl::Duration kNap = absl::Microseconds(50);

// One direction of one GPU: copies again and again, over the same memory.
class Flow {
 public:
  Flow(device::Driver& driver, DeviceIndex device, CopyDirection direction,
       std::byte* gpu, std::byte* host, Bytes size)
      : driver_(driver),
        device_(device),
        direction_(direction),
        to_(direction == CopyDirection::kHostToDevice ? gpu : host),
        from_(direction == CopyDirection::kHostToDevice ? host : gpu),
        size_(size) {}
  ~Flow() {
    if (stream_.value() != 0) {
      driver_.SynchronizeStream(stream_).IgnoreError();
      driver_.DestroyStream(stream_).IgnoreError();
    }
    for (const device::Event event : events_) {
      if (event.value() != 0) driver_.DestroyEvent(event).IgnoreError();
    }
  }
  Flow(const Flow&) = delete;

  // And as many copies as it has at once.
  absl::Status Start() {
    SLUICE_ASSIGN_OR_RETURN(stream_, driver_.CreateStream(device_));
    for (device::Event& event : events_) {
      SLUICE_ASSIGN_OR_RETURN(event, driver_.CreateEvent());
    }
    begin_ = clock_.Now();
    for (size_t i = 0; i < kAhead; ++i) SLUICE_RETURN_IF_ERROR(Enqueue());
    return absl::OkStatus();
  }

  // Counts the copies that are done and makes as many more. Whether there were
  // any.
  absl::StatusOr<bool> Go(absl::Duration window) {
    bool any = false;
    for (size_t i = 0; i < kAhead; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const bool done,
                              driver_.QueryEvent(events_[next_]));
      if (!done) break;
      any = true;
      Count(window);
      SLUICE_RETURN_IF_ERROR(Enqueue());
    }
    return any;
  }

  CopyDirection direction() const { return direction_; }
  // Bytes per second; 0: not measured yet.
  double rate() const { return rate_; }

 private:
  // Into the place of the oldest, which is done.
  absl::Status Enqueue() {
    SLUICE_RETURN_IF_ERROR(
        driver_.CopyAsync(to_, from_, size_, direction_, stream_));
    SLUICE_RETURN_IF_ERROR(driver_.RecordEvent(events_[next_], stream_));
    next_ = (next_ + 1) % kAhead;
    return absl::OkStatus();
  }

  void Count(absl::Duration window) {
    const absl::Time now = clock_.Now();
    if (!counted_from_) {
      if (now - begin_ >= kWarmUp) counted_from_ = now;
      return;
    }
    ++counted_;
    const absl::Duration took = now - *counted_from_;
    if (rate_ > 0 || counted_ < kLeastCopies || took < window) return;
    rate_ = counted_ * static_cast<double>(size_.count()) /
            absl::ToDoubleSeconds(took);
  }

  device::Driver& driver_;
  const DeviceIndex device_;
  const CopyDirection direction_;
  std::byte* const to_;
  std::byte* const from_;
  const Bytes size_;
  const MonotonicClock clock_;
  device::Stream stream_;
  std::array<device::Event, kAhead> events_;
  size_t next_ = 0;  // the oldest of events_
  absl::Time begin_;
  std::optional<absl::Time> counted_from_;
  int counted_ = 0;
  double rate_ = 0;
};

bool IsMeasured(const std::vector<std::unique_ptr<Flow>>& flows) {
  return std::all_of(flows.begin(), flows.end(),
                     [](const auto& flow) { return flow->rate() > 0; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CopyMeter>> CopyMeter::Open(Options options) {
  auto meter = std::unique_ptr<CopyMeter>(new CopyMeter(std::move(options)));
  for (size_t gpu = 0; gpu < meter->options_.gpu_free.size(); ++gpu) {
    if (const absl::Status attached = meter->Attach(gpu); !attached.ok()) {
      return Annotate(attached, fmt::format("measure at GPU {}", gpu));
    }
  }
  return meter;
}

absl::Status CopyMeter::Attach(size_t gpu) {
  const auto ranks = static_cast<int>(options_.gpu_free.size());
  Gpu made;
  SLUICE_ASSIGN_OR_RETURN(
      made.session, client::Session::Open(
                        {.socket = options_.socket,
                         .job = fmt::format("bandwidth-measure-{}", getpid()),
                         .rank = Rank(gpu),
                         .world_size = ranks,
                         .local_ranks = ranks,
                         .gpu = DeviceIndex(gpu)}));
  const Bytes unit = made.session->limits().granularity;
  const Bytes memory =
      std::max(unit, std::min(kMostMemory, Bytes(options_.gpu_free[gpu] / 2)));
  SLUICE_ASSIGN_OR_RETURN(made.device, made.session->LeaseGpu(memory));
  SLUICE_ASSIGN_OR_RETURN(made.host, made.session->LeaseHost(memory));
  // Else the first copies count how pages are made.
  std::memset(made.host->data(), 1, made.host->size().size());
  gpus_.push_back(std::move(made));
  return absl::OkStatus();
}

absl::StatusOr<MeasuredSpeeds> CopyMeter::Measure(
    const std::vector<size_t>& gpus) {
  SLUICE_ASSIGN_OR_RETURN(const Rates in, CopyAtOnce(gpus, true, false));
  SLUICE_ASSIGN_OR_RETURN(const Rates out, CopyAtOnce(gpus, false, true));
  SLUICE_ASSIGN_OR_RETURN(const Rates both, CopyAtOnce(gpus, true, true));
  return MeasuredSpeeds{in.h2d, out.d2h, both.h2d, both.d2h};
}

absl::StatusOr<CopyMeter::Rates> CopyMeter::CopyAtOnce(
    const std::vector<size_t>& gpus, bool h2d, bool d2h) {
  std::vector<std::unique_ptr<Flow>> flows;
  for (const size_t at : gpus) {
    Gpu& gpu = gpus_.at(at);
    // Each direction has a half: neither writes what the other reads.
    const Bytes half = Bytes(
        std::min(gpu.device->size().count(), gpu.host->size().count()) / 2);
    const auto add = [&](CopyDirection direction, Bytes from) {
      flows.push_back(std::make_unique<Flow>(
          gpu.session->driver(), gpu.session->limits().device, direction,
          gpu.device->data() + from.count(), gpu.host->data() + from.count(),
          std::min(half, kMostCopy)));
    };
    if (h2d) add(CopyDirection::kHostToDevice, Bytes(0));
    if (d2h) add(CopyDirection::kDeviceToHost, half);
  }
  for (const auto& flow : flows) SLUICE_RETURN_IF_ERROR(flow->Start());
  // Each goes on until all are measured: none is to have more while another
  // one is.
  while (!IsMeasured(flows)) {
    if (options_.stop()) return absl::CancelledError("stopped");
    bool any = false;
    for (const auto& flow : flows) {
      SLUICE_ASSIGN_OR_RETURN(const bool went, flow->Go(options_.window));
      any |= went;
    }
    if (!any) absl::SleepFor(kNap);
  }
  Rates rates;
  for (const auto& flow : flows) {
    (flow->direction() == CopyDirection::kHostToDevice ? rates.h2d
                                                       : rates.d2h) +=
        flow->rate();
  }
  return rates;
}

}  // namespace sluice::ctl
