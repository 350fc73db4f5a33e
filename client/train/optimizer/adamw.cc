#include "client/train/optimizer/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::train {

double LearningRate(const AdamWOptions& options, int64_t step) {
  if (step >= options.warmup) return options.lr;
  return options.lr * static_cast<double>(step + 1) /
         static_cast<double>(options.warmup);
}

AdamW::AdamW(const AdamWOptions& options, FlatModel* weights,
             FlatModel* gradients, runtime::Collectives* collectives)
    : options_(options),
      weights_(weights),
      gradients_(gradients),
      collectives_(collectives),
      rank_(collectives != nullptr ? collectives->rank() : 0),
      buckets_(stream::CutBuckets(
          weights->size(),
          collectives != nullptr ? collectives->world_size() : 1)) {
  int64_t owned = 0;
  for (const stream::Bucket& b : buckets_)
    owned += b.owner == rank_ ? b.size : 0;
  const at::TensorOptions float32 =
      runtime::On(weights->flat().device(), at::kFloat);
  states_.m = at::zeros({owned}, float32);
  states_.v = at::zeros({owned}, float32);
  if (weights->flat().scalar_type() != at::kFloat) {
    states_.master = at::empty({owned}, float32);
  }
  step_ = at::zeros({}, float32);
  MakePieces();
  for (Piece& piece : pieces_) {
    if (states_.master.defined()) piece.target.copy_(piece.weight);
  }
}

// Pieces are cut at tensor bounds because weight decay differs by tensor.
void AdamW::MakePieces() {
  int64_t state_offset = 0;
  for (const stream::Bucket& bucket : buckets_) {
    if (bucket.owner != rank_) continue;
    for (const FlatEntry& entry : weights_->entries()) {
      const int64_t begin = std::max(bucket.offset, entry.offset);
      const int64_t end =
          std::min(bucket.offset + bucket.size, entry.offset + entry.size);
      if (begin >= end) continue;
      const int64_t at = state_offset + begin - bucket.offset;
      const int64_t n = end - begin;
      Piece piece;
      piece.weight = weights_->flat().narrow(0, begin, n);
      piece.gradient = gradients_->flat().narrow(0, begin, n);
      piece.m = states_.m.narrow(0, at, n);
      piece.v = states_.v.narrow(0, at, n);
      piece.target = states_.master.defined() ? states_.master.narrow(0, at, n)
                                              : piece.weight;
      piece.decays = entry.decays;
      pieces_.push_back(std::move(piece));
    }
    state_offset += bucket.size;
  }
}

absl::StatusOr<double> AdamW::ReduceGradients() {
  // Summed where the gradients are, in the buckets' order: the host waits for
  // one number, not for one per bucket.
  at::Tensor squares =
      at::zeros({}, runtime::On(gradients_->flat().device(), at::kDouble));
  for (const stream::Bucket& bucket : buckets_) {
    at::Tensor part = gradients_->flat().narrow(0, bucket.offset, bucket.size);
    if (collectives_ != nullptr) {
      SLUICE_RETURN_IF_ERROR(collectives_->SumTo(part, bucket.owner));
    }
    if (bucket.owner == rank_) squares.add_(at::dot(part, part));
  }
  double sum = squares.item<double>();
  if (collectives_ != nullptr) {
    // What was aborted has left the gradients as they were.
    SLUICE_RETURN_IF_ERROR(collectives_->Check());
    at::Tensor all = at::full({1}, sum, runtime::OnHost(at::kDouble));
    SLUICE_RETURN_IF_ERROR(collectives_->SumAll(all));
    sum = all.item<double>();
  }
  return std::sqrt(sum);
}

void AdamW::UpdateOwned(int64_t step) {
  // The kernel wants the count after this step, for its bias correction.
  step_.fill_(static_cast<double>(step + 1));
  for (const bool decays : {false, true}) {
    std::vector<at::Tensor> targets, gradients, m, v, steps;
    for (Piece& piece : pieces_) {
      if (piece.decays != decays) continue;
      targets.push_back(piece.target);
      gradients.push_back(piece.gradient);
      m.push_back(piece.m);
      v.push_back(piece.v);
      steps.push_back(step_);
    }
    if (targets.empty()) continue;
    at::_fused_adamw_(targets, gradients, m, v, {}, steps,
                      LearningRate(options_, step), options_.beta1,
                      options_.beta2, decays ? options_.weight_decay : 0.0,
                      options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
}

absl::Status AdamW::Update(int64_t step, double norm) {
  // As torch's clip_grad_norm_, so that curves compare with others'.
  if (options_.clip > 0 && norm > options_.clip) {
    const double scale = options_.clip / (norm + 1e-6);
    for (Piece& piece : pieces_) piece.gradient.mul_(scale);
  }
  UpdateOwned(step);
  if (states_.master.defined()) {
    for (Piece& piece : pieces_) piece.weight.copy_(piece.target);
  }
  if (collectives_ == nullptr) return absl::OkStatus();
  for (const stream::Bucket& bucket : buckets_) {
    at::Tensor part = weights_->flat().narrow(0, bucket.offset, bucket.size);
    SLUICE_RETURN_IF_ERROR(collectives_->Broadcast(part, bucket.owner));
  }
  return absl::OkStatus();
}

}  // namespace sluice::train
