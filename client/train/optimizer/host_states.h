// AdamW's states in leased host memory, and the ring in HBM in which they are
// updated, one unit (planner/stream/states.h) after the other, round and round.
//
// A slot of the ring is arriving, in use (between Take and GiveBack), or
// leaving. A copy in waits for the last copy out of its slot and of its unit.
// All slots but the one in use arrive ahead of compute, so the first units of
// the next update arrive while backward computes.
// Errors: the copy engine's. Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "planner/stream/states.h"

namespace sluice::train {

class HostStates {
 public:
  struct Options {
    stream::ModelShape model;
    stream::Dtype dtype = stream::Dtype::kFp32;  // of the weights
    int ranks = 1, rank = 0;
    at::Device device;  // of the ring
    std::unique_ptr<client::CopyEngine> copies;
    std::byte* host = nullptr;  // StateBytes::host bytes, leased; outlives this
  };
  // Allocates the ring from c10's current allocator of the device.
  explicit HostStates(Options options);
  // Waits for copies in flight.
  ~HostStates();
  HostStates(const HostStates&) = delete;

  const std::vector<stream::StateUnit>& units() const { return units_; }
  client::CopyEngine& copies() { return *options_.copies; }

  // Returns m, v and, for bf16 weights, master: fp32 [this rank's elements]
  // each, on the CPU. Write them only before the first Start; read them only
  // then or after Settle.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Begins an update: fetches as many units ahead as there are slots.
  void Start();
  bool Arrived() const;
  // Returns the next unit's states in HBM; compute waits for it.
  absl::StatusOr<std::vector<at::Tensor>> Take();
  // Copies the unit back to host memory once compute so far is done.
  void GiveBack();
  // Waits until every unit that was given back is in host memory.
  absl::Status Settle() { return options_.copies->Drain(); }

 private:
  struct Slot {
    client::Ticket arrived, free;
  };
  void Fetch();
  client::CopyRequest Request(int64_t count, device::CopyDirection direction);
  Slot& SlotOf(int64_t count) { return slots_[count % stream::kStateSlots]; }
  const stream::StateUnit& UnitOf(int64_t count) const {
    return units_[static_cast<size_t>(count % std::ssize(units_))];
  }
  // Returns a tensor in the slot of the count-th unit.
  at::Tensor InSlot(int64_t count, size_t tensor) const;

  Options options_;
  const std::vector<stream::StateUnit> units_;
  const int64_t slot_elements_;
  std::vector<at::Tensor> tensors_;
  at::Tensor ring_;
  std::array<Slot, stream::kStateSlots> slots_;
  std::vector<client::Ticket> written_;  // the last copy out of each unit
  // Counts of units over all updates.
  int64_t fetched_ = 0, done_ = 0;
};

}  // namespace sluice::train
