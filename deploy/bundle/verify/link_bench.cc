#include "deploy/bundle/verify/link_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using device::CopyDirection;
using device::Placement;

// With this size the fixed cost of a copy is negligible on any link.
constexpr Bytes kMostCopy = MiB(16);
// The memory is at most 1/8 of the GPU's free memory.
constexpr int64_t kLinkPartOfGpu = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<LinkBench>> LinkBench::Open(
    device::Driver& driver, const device::DeviceInfo& gpu, std::string name) {
  auto bench =
      std::unique_ptr<LinkBench>(new LinkBench(driver, gpu, std::move(name)));
  const Placement here = Placement::Gpu(gpu.index);
  const Placement near = Placement::Host(gpu.numa);
  SLUICE_ASSIGN_OR_RETURN(const Bytes of_gpu, driver.Granularity(here));
  SLUICE_ASSIGN_OR_RETURN(const Bytes of_host, driver.Granularity(near));
  SLUICE_ASSIGN_OR_RETURN(const device::MemoryUse use, driver.Usage(here));
  const int64_t unit = std::lcm(of_gpu.count(), of_host.count());
  const int64_t free = use.total.count() - use.used.count();
  const int64_t wanted = std::min(kMostCopy.count(), free / kLinkPartOfGpu);
  bench->half_ = Bytes(std::max(wanted / unit * unit, unit));
  SLUICE_RETURN_IF_ERROR(bench->Make(bench->on_gpu_, here, 2 * bench->half_));
  const double begin = MonotonicSeconds();
  SLUICE_RETURN_IF_ERROR(bench->Make(bench->on_host_, near, 2 * bench->half_));
  bench->pin_seconds_per_gib_ =
      (MonotonicSeconds() - begin) /
      (static_cast<double>(bench->on_host_.size.count()) /
       static_cast<double>(GiB(1).count()));
  SLUICE_ASSIGN_OR_RETURN(bench->stream_, driver.CreateStream(gpu.index));
  return bench;
}

LinkBench::~LinkBench() {
  if (stream_.value() != 0) driver_.DestroyStream(stream_).IgnoreError();
  Drop(on_gpu_);
  Drop(on_host_);
}

absl::Status LinkBench::Make(Piece& piece, Placement where, Bytes size) {
  piece.size = size;
  SLUICE_ASSIGN_OR_RETURN(piece.memory, driver_.Create(where, size));
  SLUICE_ASSIGN_OR_RETURN(piece.address, driver_.Reserve(size, where.kind));
  SLUICE_RETURN_IF_ERROR(driver_.Map(piece.address, size, piece.memory));
  return driver_.SetAccess(piece.address, size, gpu_.index);
}

// Frees what Make has allocated. Errors are ignored, because Make may have
// failed before it mapped the piece.
void LinkBench::Drop(const Piece& piece) {
  if (piece.address != nullptr) {
    driver_.Unmap(piece.address, piece.size).IgnoreError();
    driver_.FreeReservation(piece.address, piece.size).IgnoreError();
  }
  if (piece.memory.value() != 0) driver_.Release(piece.memory).IgnoreError();
}

absl::Status LinkBench::CopyNow(device::Address to, const std::byte* from,
                                CopyDirection direction) {
  SLUICE_RETURN_IF_ERROR(
      driver_.CopyAsync(to, from, half_, direction, stream_));
  return driver_.SynchronizeStream(stream_);
}

absl::Status LinkBench::Fill() {
  ++seed_;
  for (size_t i = 0; i < half_.size(); ++i) {
    on_host_.address[i] =
        static_cast<std::byte>((i * 2654435761u >> 13) ^ (i >> 21) ^ seed_);
  }
  std::memset(on_host_.address + half_.size(), ~seed_, half_.size());
  for (const size_t to : {size_t{0}, half_.size()}) {
    SLUICE_RETURN_IF_ERROR(CopyNow(on_gpu_.address + to, on_host_.address,
                                   CopyDirection::kHostToDevice));
  }
  return absl::OkStatus();
}

std::unique_ptr<ctl::CopyFlow> LinkBench::Flow(CopyDirection direction) {
  const size_t from =
      direction == CopyDirection::kHostToDevice ? 0 : half_.size();
  return std::make_unique<ctl::CopyFlow>(
      driver_, ctl::CopyFlow::Range{.device = gpu_.index,
                                    .direction = direction,
                                    .gpu = on_gpu_.address + from,
                                    .host = on_host_.address + from,
                                    .size = half_});
}

absl::Status LinkBench::CompareArrived(const char* what) const {
  const std::byte* const sent = on_host_.address;
  const std::byte* const arrived = sent + half_.size();
  if (std::memcmp(sent, arrived, half_.size()) == 0) return absl::OkStatus();
  const auto at = std::mismatch(sent, arrived, arrived).first - sent;
  return absl::DataLossError(
      fmt::format("GPU {}: byte {} of {} differs after {}", gpu_.index.value(),
                  at, FormatBytes(half_), what));
}

absl::Status LinkBench::Compare(bool copied_to_host) {
  if (copied_to_host) {
    SLUICE_RETURN_IF_ERROR(CompareArrived("copies to the host"));
  }
  const device::Address back = on_host_.address + half_.size();
  for (const size_t from : {size_t{0}, half_.size()}) {
    std::memset(back, ~seed_, half_.size());
    SLUICE_RETURN_IF_ERROR(
        CopyNow(back, on_gpu_.address + from, CopyDirection::kDeviceToHost));
    SLUICE_RETURN_IF_ERROR(CompareArrived("a copy to the GPU and back"));
  }
  return absl::OkStatus();
}

}  // namespace sluice::verify
