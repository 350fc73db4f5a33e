// HostInputs of baseline.h.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

#include "client/torch/baseline/baseline.h"
#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr Bytes kAlignment{64};

Bytes LayerBytes(const HostInputs::Options& o) {
  const auto element = static_cast<int64_t>(c10::elementSize(o.dtype));
  return RoundUp(Bytes(o.rows * o.hidden * element), kAlignment);
}

}  // namespace

Bytes HostInputs::HostBytes(const Options& options) {
  return Bytes(options.layers * LayerBytes(options).count());
}

absl::StatusOr<std::unique_ptr<HostInputs>> HostInputs::Create(
    const Options& options) {
  const Bytes needed = HostBytes(options);
  if (options.host_size < needed) {
    return absl::ResourceExhaustedError(fmt::format(
        "the inputs of {} layers of {} rows need {} of host memory and have {}",
        options.layers, options.rows, FormatBytes(needed),
        FormatBytes(options.host_size)));
  }
  return std::unique_ptr<HostInputs>(new HostInputs(options));
}

std::byte* HostInputs::HostOf(int64_t layer) const {
  return options_.host + layer * LayerBytes(options_).count();
}

void HostInputs::Save(int64_t layer, const at::Tensor& x) {
  if (x.numel() == 0) return;
  Stored& stored = stored_[layer];
  client::CopyRequest request;
  request.direction = device::CopyDirection::kDeviceToHost;
  request.pieces = {
      {HostOf(layer), static_cast<const std::byte*>(x.data_ptr()), SizeOf(x)}};
  request.after = {options_.copies->MarkCompute(), stored.read};
  request.label = "layer input";
  stored.written = options_.copies->Enqueue(std::move(request));
  leaving_ = {layer, x};
}

absl::Status HostInputs::AwaitSaved() {
  if (!leaving_.has_value()) return absl::OkStatus();
  const InFlight done = *std::exchange(leaving_, std::nullopt);
  return options_.copies->Wait(stored_[done.layer].written);
}

void HostInputs::Fetch(int64_t layer) {
  if (arriving_.has_value() && arriving_->layer == layer) return;
  at::Tensor x = at::empty({options_.rows, options_.hidden},
                           On(options_.device, options_.dtype));
  if (x.numel() > 0) {
    Stored& stored = stored_[layer];
    client::CopyRequest request;
    request.pieces = {
        {static_cast<std::byte*>(x.data_ptr()), HostOf(layer), SizeOf(x)}};
    // Compute may have used the tensor's memory until now.
    request.after = {options_.copies->MarkCompute(), stored.written};
    request.label = "layer input";
    stored.read = options_.copies->Enqueue(std::move(request));
  }
  arriving_ = {layer, std::move(x)};
}

absl::StatusOr<at::Tensor> HostInputs::Take(int64_t layer) {
  Fetch(layer);
  InFlight arrived = *std::exchange(arriving_, std::nullopt);
  SLUICE_RETURN_IF_ERROR(options_.copies->Wait(stored_[layer].read));
  return std::move(arrived.tensor);
}

void HostInputs::Settle() {
  AwaitSaved().IgnoreError();
  if (!arriving_.has_value()) return;
  const InFlight arrived = *std::exchange(arriving_, std::nullopt);
  options_.copies->Wait(stored_[arrived.layer].read).IgnoreError();
}

}  // namespace sluice::runtime
