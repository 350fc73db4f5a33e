#include "client/torch/run/host_stage.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

at::Tensor BytesOf(const at::Tensor& tensor) {
  return ViewOf(tensor.data_ptr(), {SizeOf(tensor).count()}, at::kByte,
                tensor.device());
}

absl::Status CheckStaged(const at::Tensor& tensor, Bytes half) {
  if (!tensor.is_contiguous()) {
    return absl::InvalidArgumentError("a staged tensor is not contiguous");
  }
  if (tensor.is_cpu() || half > Bytes(0)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "a tensor on {}, and a stage without pinned memory: the CPU cannot touch "
      "it",
      tensor.device().str()));
}

}  // namespace

void AwaitStream(at::Device device) {
  if (device.is_cpu()) return;
  CatchStatus("", [&] {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }).IgnoreError();
}

HostStage::HostStage(std::byte* pinned, Bytes size) : half_(size / 2) {
  halves_[0].data = pinned;
  halves_[1].data = pinned + half_.count();
}

HostStage::~HostStage() {
  for (const Half& half : halves_) {
    if (!half.sent.has_value()) continue;
    // Errors are ignored: a lost GPU copies nothing more.
    CatchStatus("", [&] { half.sent->synchronize(); }).IgnoreError();
  }
}

HostStage::Half& HostStage::Next() {
  Half& half = halves_[next_++ % halves_.size()];
  if (half.sent.has_value() && !half.sent->query()) half.sent->synchronize();
  half.sent.reset();
  return half;
}

absl::Status HostStage::Read(const at::Tensor& from, const Take& take) {
  SLUICE_RETURN_IF_ERROR(CheckStaged(from, half_));
  if (from.numel() == 0) return absl::OkStatus();
  if (from.is_cpu()) {
    return take(static_cast<const std::byte*>(from.data_ptr()), SizeOf(from));
  }
  const at::Tensor bytes = BytesOf(from);
  for (int64_t at = 0; at < bytes.numel(); at += half_.count()) {
    const int64_t n = std::min(half_.count(), bytes.numel() - at);
    const Half& half = Next();
    ViewOf(half.data, {n}, at::kByte, at::kCPU).copy_(bytes.narrow(0, at, n));
    SLUICE_RETURN_IF_ERROR(take(half.data, Bytes(n)));
  }
  return absl::OkStatus();
}

absl::Status HostStage::Read(const at::Tensor& from, void* to) {
  auto* next = static_cast<std::byte*>(to);
  return Read(from, [&](const std::byte* data, Bytes size) {
    std::memcpy(next, data, size.size());
    next += size.count();
    return absl::OkStatus();
  });
}

absl::Status HostStage::Write(const at::Tensor& to, const Give& give) {
  SLUICE_RETURN_IF_ERROR(CheckStaged(to, half_));
  if (to.numel() == 0) return absl::OkStatus();
  if (to.is_cpu()) {
    return give(static_cast<std::byte*>(to.data_ptr()), SizeOf(to));
  }
  const c10::impl::VirtualGuardImpl device(to.device().type());
  const at::Tensor bytes = BytesOf(to);
  for (int64_t at = 0; at < bytes.numel(); at += half_.count()) {
    const int64_t n = std::min(half_.count(), bytes.numel() - at);
    Half& half = Next();
    SLUICE_RETURN_IF_ERROR(give(half.data, Bytes(n)));
    bytes.narrow(0, at, n).copy_(ViewOf(half.data, {n}, at::kByte, at::kCPU),
                                 /*non_blocking=*/true);
    half.sent.emplace(to.device().type());
    half.sent->record(device.getStream(to.device()));
  }
  return absl::OkStatus();
}

absl::Status HostStage::Write(const at::Tensor& to, const void* from) {
  const auto* next = static_cast<const std::byte*>(from);
  return Write(to, [&](std::byte* data, Bytes size) {
    std::memcpy(data, next, size.size());
    next += size.count();
    return absl::OkStatus();
  });
}

}  // namespace sluice::runtime
