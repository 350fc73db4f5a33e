#include "client/train/optimizer/host_states.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr int64_t kLine = 64;

int64_t Lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

HostStates::HostStates(Options options)
    : options_(std::move(options)),
      units_(stream::CutStates(options_.model, options_.dtype, options_.ranks,
                               options_.rank)),
      slot_elements_(stream::SlotElements(options_.model, options_.dtype,
                                          options_.ranks, options_.rank)),
      written_(units_.size()) {
  const int64_t owned =
      stream::OwnedElements(options_.model, options_.ranks, options_.rank);
  const int count = stream::StateTensors(options_.dtype);
  for (int i = 0; i < count; ++i) {
    tensors_.push_back(runtime::ViewOf(options_.host + i * Lines(owned * 4),
                                       {owned}, at::kFloat, at::kCPU));
  }
  ring_ = at::empty({stream::kStateSlots * count * slot_elements_},
                    runtime::On(options_.device, at::kFloat));
  // Compute may have used this memory until now.
  for (Slot& slot : slots_) slot.free = options_.copies->MarkCompute();
}

HostStates::~HostStates() { options_.copies->Drain().IgnoreError(); }

at::Tensor HostStates::InSlot(int64_t count, size_t tensor) const {
  const int64_t slot = count % stream::kStateSlots;
  const int64_t at = slot * std::ssize(tensors_) + static_cast<int64_t>(tensor);
  return ring_.narrow(0, at * slot_elements_, UnitOf(count).size);
}

client::CopyRequest HostStates::Request(int64_t count,
                                        device::CopyDirection direction) {
  const stream::StateUnit& unit = UnitOf(count);
  client::CopyRequest request;
  request.direction = direction;
  request.label = "optimizer states";
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor here = InSlot(count, i);
    auto* const hbm = static_cast<std::byte*>(here.data_ptr());
    auto* const host = static_cast<std::byte*>(tensors_[i].data_ptr()) +
                       unit.begin * tensors_[i].element_size();
    const Bytes size(static_cast<int64_t>(here.nbytes()));
    const bool in = direction == device::CopyDirection::kHostToDevice;
    request.pieces.push_back({in ? hbm : host, in ? host : hbm, size});
  }
  return request;
}

void HostStates::Fetch() {
  client::CopyRequest request =
      Request(fetched_, device::CopyDirection::kHostToDevice);
  Slot& slot = SlotOf(fetched_);
  request.after = {
      slot.free, written_[static_cast<size_t>(fetched_ % std::ssize(units_))]};
  slot.arrived = options_.copies->Enqueue(std::move(request));
  ++fetched_;
}

// A unit is fetched again only after it was given back.
void HostStates::Start() {
  const int64_t ahead =
      std::min<int64_t>(stream::kStateSlots, std::ssize(units_));
  while (fetched_ < done_ + ahead) Fetch();
}

bool HostStates::Arrived() const {
  return fetched_ > done_ && slots_[done_ % stream::kStateSlots].arrived.done();
}

absl::StatusOr<std::vector<at::Tensor>> HostStates::Take() {
  SLUICE_CHECK(fetched_ > done_);
  SLUICE_RETURN_IF_ERROR(options_.copies->Wait(SlotOf(done_).arrived));
  std::vector<at::Tensor> unit;
  for (size_t i = 0; i < tensors_.size(); ++i) unit.push_back(InSlot(done_, i));
  return unit;
}

void HostStates::GiveBack() {
  client::CopyRequest request =
      Request(done_, device::CopyDirection::kDeviceToHost);
  request.after = {options_.copies->MarkCompute()};
  const client::Ticket sent = options_.copies->Enqueue(std::move(request));
  SlotOf(done_).free = sent;
  written_[static_cast<size_t>(done_ % std::ssize(units_))] = sent;
  ++done_;
  Start();
}

}  // namespace sluice::train
