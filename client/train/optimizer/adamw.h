// AdamW with ZeRO-1: every rank holds all weights and gradients, but only the
// optimizer states of its own buckets.
//
// The flat buffers are cut into rounds of one bucket per rank
// (planner/stream/states.h). A round's gradients are summed on the buckets'
// owners, the global norm clips them, the owners update, and the round's new
// weights go to all ranks. The states are fp32: m, v and, for bf16 weights, a
// master copy of them.
//
// The sums of a part of the model begin when backward has that part's gradients
// (PartIsDone). With the states in HBM, a part's new weights are gathered while
// forward computes with the part before it (AwaitPart). With the states in host
// memory (HostStates), Update only begins to fetch them: a part is updated, and
// its gradients are zeroed, before the next forward reads the part. Both places
// give the same bits, because the kernel runs on the same pieces.
//
// Gradients arrive divided by the global number of labels, so they are summed
// over ranks and not averaged.
// Errors: a failed collective's status. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/host_stage.h"
#include "client/torch/stream/pending_weights.h"
#include "planner/stream/states.h"

namespace sluice::train {

// One tensor's place in the flat buffer, in elements.
struct FlatEntry {
  std::string name;  // ours: "layers.2.q_weight"
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t size = 0;
  bool decays = false;  // weight decay: matrices, not norms and biases
};

std::vector<FlatEntry> FlatEntries(const stream::ModelShape& config);

// A model's tensors as views into one flat buffer, which ZeRO-1 cuts into
// buckets without regard to tensors. Weights have the model's dtype, gradients
// are fp32; both have the same order (runtime::NamedTensors).
// Thread safety: one thread.
class FlatModel {
 public:
  // Allocates one buffer of zeros from c10's current allocator of the device.
  FlatModel(const stream::ModelShape& config, at::ScalarType dtype,
            at::Device device);

  const stream::ModelShape& shape() const { return shape_; }
  const std::vector<FlatEntry>& entries() const { return entries_; }
  const at::Tensor& flat() const { return flat_; }
  runtime::ModelTensors& tensors() { return tensors_; }
  int64_t size() const { return flat_.numel(); }

  // Sets one of entries() from values of any type in host memory.
  absl::Status Set(const FlatEntry& entry, const at::Tensor& values,
                   runtime::HostStage& stage);
  // Sets the initial weights for `seed`, the same for every number of ranks.
  absl::Status Initialize(const stream::ModelShape& config, uint64_t seed,
                          runtime::HostStage& stage);

 private:
  stream::ModelShape shape_;
  std::vector<FlatEntry> entries_;
  at::Tensor flat_;
  runtime::ModelTensors tensors_;
};

// AdamW's states in leased host memory, and the ring in HBM in which they are
// updated, one unit (planner/stream/states.h) after the other, round and round.
//
// A slot of the ring is arriving, in use (between Take and GiveBack), or
// leaving. A copy into a slot waits until slot and unit have been copied out.
// All slots but the one in use arrive ahead of compute, so the first units of
// the next update arrive while backward computes.
// Errors: the copy engine's. Thread safety: the compute thread only.
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

struct AdamWOptions {
  double lr = 1e-3;
  int64_t warmup = 10;
  double clip = 1.0;  // 0: no clipping
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

// Returns the learning rate of `step` (first: 0): linear warm-up, then `lr`.
double LearningRate(const AdamWOptions& options, int64_t step);

class AdamW final : public runtime::PendingWeights {
 public:
  // Without `host`, allocates this rank's states on the weights' device from
  // c10's current allocator. All references outlive the optimizer.
  // `collectives` may be null: one rank.
  AdamW(const AdamWOptions& options, FlatModel* weights, FlatModel* gradients,
        runtime::Collectives* collectives,
        std::unique_ptr<HostStates> host = nullptr);
  // Initializes states in host memory before the first step.
  absl::Status ClearHost(runtime::HostStage& stage);

  // Call it before a step's last sequence, in which PartIsDone begins sums.
  void BeginLastSequence() { last_sequence_ = true; }
  // Sums gradients on their owners and returns the global norm, for which the
  // host waits once. Afterwards the gradients of other ranks' buckets are
  // undefined.
  absl::StatusOr<double> ReduceGradients();
  // Updates the weights on all ranks. `norm` is ReduceGradients()'s. The update
  // is pending: weights, gradients and states are complete after FinishUpdate.
  absl::Status Update(int64_t step, double norm);
  // Completes a pending update, on all ranks together.
  absl::Status FinishUpdate();
  // Zeroes the gradients at a step's start. With `host` it does nothing,
  // because a pending update zeroes the gradients of each part.
  void ZeroGradients();
  absl::Status AwaitPart(int64_t part) override;
  absl::Status Advance() override;
  absl::Status PartIsDone(int64_t part) override;
  HostStates* host() { return host_.get(); }  // null: the states are in HBM

  // This rank's states, for checkpoints: one fp32 tensor each over this rank's
  // buckets in order, on the CPU with `host`. `master` is undefined for fp32
  // weights.
  struct States {
    at::Tensor m, v, master;
  };
  States& states() { return states_; }
  // Returns the buckets of all ranks, in the order of the flat buffer.
  const std::vector<stream::Bucket>& buckets() const { return buckets_; }

 private:
  struct Piece {  // a part of one tensor inside one owned bucket
    at::Tensor target, weight, gradient, m, v;
    int64_t at, size;  // in this rank's own elements
    bool decays;
  };
  void MakePieces();
  // Binds pieces to `states`, which begin at this rank's element `begin`.
  static void Bind(std::span<Piece> pieces, const States& states,
                   int64_t begin);
  // Updates the weights of `pieces`, which must be bound to states in HBM.
  void UpdatePieces(std::span<Piece> pieces);
  absl::Status UpdateUnit();
  // With host_ set, updates the units of a part that Advance has not updated,
  // and zeroes the part's gradients.
  absl::Status UpdatePart(int64_t part);
  // Calls `even` for each round of a part that has `even` set, and `single` for
  // each bucket of the part's other rounds.
  absl::Status Move(int64_t part, const FlatModel& of,
                    absl::Status (runtime::Collectives::*even)(at::Tensor&),
                    absl::Status (runtime::Collectives::*single)(at::Tensor&,
                                                                 int));
  absl::Status ReduceFrom(int64_t part);
  absl::Status Gather(int64_t part);

  AdamWOptions options_;
  FlatModel* weights_;
  FlatModel* gradients_;
  runtime::Collectives* collectives_;
  int rank_;
  std::vector<stream::Round> rounds_;
  std::vector<stream::Bucket> buckets_;
  const int64_t parts_;
  States states_;
  std::vector<Piece> pieces_;
  at::Tensor step_;  // AdamW's step count, as its kernel expects it
  double lr_ = 0;    // in the last Update
  double scale_ = 1;
  const std::unique_ptr<HostStates> host_;
  bool last_sequence_ = false;
  int64_t reduced_from_;  // sums of this part and later ones have begun
  // Progress of the pending update.
  int64_t next_part_;                      // the next part to be awaited
  int64_t next_gathered_;                  // the next part to be gathered
  size_t next_unit_ = 0, next_piece_ = 0;  // with host_
};

}  // namespace sluice::train
