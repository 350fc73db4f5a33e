#include "client/ctl/bandwidth/copy_meter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/ctl/bandwidth/copy_flow.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

using device::CopyDirection;

// The copy size: large enough to hide a copy's fixed cost, and small enough
// that slow links complete several.
constexpr Bytes kMostCopy = MiB(4);
constexpr Bytes kMostMemory = MiB(32);  // per GPU, and as much of host memory

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

std::string CopyMeter::Job() {
  return fmt::format("bandwidth-measure-{}", getpid());
}

absl::Status CopyMeter::Attach(size_t gpu) {
  const auto ranks = static_cast<int>(options_.gpu_free.size());
  Gpu made;
  SLUICE_ASSIGN_OR_RETURN(made.session,
                          client::Session::Open({.socket = options_.socket,
                                                 .job = Job(),
                                                 .rank = Rank(gpu),
                                                 .world_size = ranks,
                                                 .local_ranks = ranks,
                                                 .gpu = DeviceIndex(gpu)}));
  const Bytes unit = made.session->limits().granularity;
  const Bytes memory =
      std::max(unit, std::min(kMostMemory, Bytes(options_.gpu_free[gpu] / 2)));
  SLUICE_ASSIGN_OR_RETURN(made.device, made.session->LeaseGpu(memory));
  SLUICE_ASSIGN_OR_RETURN(made.host, made.session->LeaseHost(memory));
  // Makes the kernel allocate the pages now, so that the first copies do not.
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
  std::vector<std::unique_ptr<CopyFlow>> flows;
  for (const size_t at : gpus) {
    Gpu& gpu = gpus_.at(at);
    // Each direction uses one half of the memory, so that neither writes what
    // the other reads.
    const Bytes half = Bytes(
        std::min(gpu.device->size().count(), gpu.host->size().count()) / 2);
    const auto add = [&](CopyDirection direction, Bytes from) {
      flows.push_back(std::make_unique<CopyFlow>(
          gpu.session->driver(),
          CopyFlow::Range{.device = gpu.session->limits().device,
                          .direction = direction,
                          .gpu = gpu.device->data() + from.count(),
                          .host = gpu.host->data() + from.count(),
                          .size = std::min(half, kMostCopy)}));
    };
    if (h2d) add(CopyDirection::kHostToDevice, Bytes(0));
    if (d2h) add(CopyDirection::kDeviceToHost, half);
  }
  SLUICE_RETURN_IF_ERROR(
      MeasureAtOnce(flows, {.average_over = options_.window}));
  Rates rates;
  for (const auto& flow : flows) {
    (flow->direction() == CopyDirection::kHostToDevice ? rates.h2d
                                                       : rates.d2h) +=
        flow->rate();
  }
  return rates;
}

}  // namespace sluice::ctl
