#include "client/train/optimizer/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::train {

double LearningRate(const AdamWOptions& options, int64_t step) {
  if (step >= options.warmup) return options.lr;
  return options.lr * static_cast<double>(step + 1) /
         static_cast<double>(options.warmup);
}

namespace {

AdamW::States StatesOf(const std::vector<at::Tensor>& tensors) {
  return {tensors[0], tensors[1],
          tensors.size() > 2 ? tensors[2] : at::Tensor()};
}

}  // namespace

AdamW::AdamW(const AdamWOptions& options, FlatModel* weights,
             FlatModel* gradients, runtime::Collectives* collectives,
             std::unique_ptr<HostStates> host)
    : options_(options),
      weights_(weights),
      gradients_(gradients),
      collectives_(collectives),
      rank_(collectives != nullptr ? collectives->rank() : 0),
      buckets_(stream::CutBuckets(
          weights->size(),
          collectives != nullptr ? collectives->world_size() : 1)),
      host_(std::move(host)) {
  MakePieces();
  const at::TensorOptions float32 =
      runtime::On(weights->flat().device(), at::kFloat);
  step_ = at::zeros({}, float32);
  if (host_ != nullptr) {
    states_ = StatesOf(host_->tensors());
    return;
  }
  int64_t owned = 0;
  for (const stream::Bucket& b : buckets_)
    owned += b.owner == rank_ ? b.size : 0;
  states_.m = at::zeros({owned}, float32);
  states_.v = at::zeros({owned}, float32);
  const bool narrow = weights->flat().scalar_type() != at::kFloat;
  if (narrow) states_.master = at::empty({owned}, float32);
  Bind(pieces_, states_, /*begin=*/0);
  for (Piece& piece : pieces_) {
    if (narrow) piece.target.copy_(piece.weight);
  }
}

void AdamW::Bind(std::span<Piece> pieces, const States& states, int64_t begin) {
  for (Piece& piece : pieces) {
    const int64_t at = piece.at - begin;
    piece.m = states.m.narrow(0, at, piece.size);
    piece.v = states.v.narrow(0, at, piece.size);
    piece.target = states.master.defined()
                       ? states.master.narrow(0, at, piece.size)
                       : piece.weight;
  }
}

absl::Status AdamW::ClearHost(runtime::HostStage& stage) {
  states_.m.zero_();
  states_.v.zero_();
  if (!states_.master.defined()) return absl::OkStatus();
  for (const Piece& piece : pieces_) {
    int64_t at = piece.at;
    const auto take = [&](const std::byte* data, Bytes size) {
      const int64_t n = size.count() / piece.weight.element_size();
      states_.master.narrow(0, at, n).copy_(
          runtime::ViewOf(const_cast<std::byte*>(data), {n},
                          piece.weight.scalar_type(), at::kCPU));
      at += n;
      return absl::OkStatus();
    };
    SLUICE_RETURN_IF_ERROR(stage.Read(piece.weight, take));
  }
  return absl::OkStatus();
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
      const int64_t n = end - begin;
      Piece piece;
      piece.weight = weights_->flat().narrow(0, begin, n);
      piece.gradient = gradients_->flat().narrow(0, begin, n);
      piece.at = state_offset + begin - bucket.offset;
      piece.size = n;
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

void AdamW::UpdatePieces(std::span<Piece> pieces) {
  for (Piece& piece : pieces) {
    if (scale_ != 1) piece.gradient.mul_(scale_);
  }
  for (const bool decays : {false, true}) {
    std::vector<at::Tensor> targets, gradients, m, v, steps;
    for (Piece& piece : pieces) {
      if (piece.decays != decays) continue;
      targets.push_back(piece.target);
      gradients.push_back(piece.gradient);
      m.push_back(piece.m);
      v.push_back(piece.v);
      steps.push_back(step_);
    }
    if (targets.empty()) continue;
    at::_fused_adamw_(targets, gradients, m, v, {}, steps, lr_, options_.beta1,
                      options_.beta2, decays ? options_.weight_decay : 0.0,
                      options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
  if (!states_.master.defined()) return;
  for (Piece& piece : pieces) piece.weight.copy_(piece.target);
}

absl::Status AdamW::Broadcast(int64_t begin, int64_t end) {
  if (collectives_ == nullptr || begin >= end) return absl::OkStatus();
  // All but the last bucket are of one size.
  for (auto b = static_cast<size_t>(begin / buckets_[0].size);
       b < buckets_.size() && buckets_[b].offset < end; ++b) {
    const stream::Bucket& bucket = buckets_[b];
    const int64_t from = std::max(begin, bucket.offset);
    const int64_t to = std::min(end, bucket.offset + bucket.size);
    at::Tensor part = weights_->flat().narrow(0, from, to - from);
    SLUICE_RETURN_IF_ERROR(collectives_->Broadcast(part, bucket.owner));
  }
  return absl::OkStatus();
}

absl::Status AdamW::Update(int64_t step, double norm) {
  SLUICE_CHECK(!pending_);
  // As torch's clip_grad_norm_, so that curves compare with others'.
  const bool clips = options_.clip > 0 && norm > options_.clip;
  scale_ = clips ? options_.clip / (norm + 1e-6) : 1;
  lr_ = LearningRate(options_, step);
  // The kernel wants the count after this step, for its bias correction.
  step_.fill_(static_cast<double>(step + 1));
  if (host_ == nullptr) {
    UpdatePieces(pieces_);
    return Broadcast(0, weights_->size());
  }
  pending_ = true;
  next_unit_ = next_piece_ = next_part_ = 0;
  part_begin_ = 0;
  host_->Start();
  return absl::OkStatus();
}

absl::Status AdamW::UpdateUnit() {
  const stream::StateUnit& unit = host_->units()[next_unit_++];
  const size_t first = next_piece_;
  while (next_piece_ < pieces_.size() &&
         pieces_[next_piece_].at < unit.begin + unit.size) {
    ++next_piece_;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<at::Tensor> states, host_->Take());
  const auto pieces =
      std::span<Piece>(pieces_).subspan(first, next_piece_ - first);
  Bind(pieces, StatesOf(states), unit.begin);
  UpdatePieces(pieces);
  host_->GiveBack();
  return absl::OkStatus();
}

absl::Status AdamW::AwaitPart(int64_t part) {
  if (!pending_) return absl::OkStatus();
  const std::vector<int64_t>& parts = host_->parts();
  for (; std::cmp_less_equal(next_part_, part); ++next_part_) {
    while (next_unit_ < host_->units().size() &&
           std::cmp_equal(host_->units()[next_unit_].part, next_part_)) {
      SLUICE_RETURN_IF_ERROR(UpdateUnit());
    }
    const int64_t size = parts[next_part_];
    SLUICE_RETURN_IF_ERROR(Broadcast(part_begin_, part_begin_ + size));
    gradients_->flat().narrow(0, part_begin_, size).zero_();
    part_begin_ += size;
  }
  pending_ = next_part_ < parts.size();
  return absl::OkStatus();
}

absl::Status AdamW::Advance() {
  while (pending_ && next_unit_ < host_->units().size() && host_->Arrived()) {
    SLUICE_RETURN_IF_ERROR(UpdateUnit());
  }
  return absl::OkStatus();
}

absl::Status AdamW::FinishUpdate() {
  if (host_ == nullptr) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(AwaitPart(std::ssize(host_->parts()) - 1));
  return host_->Settle();
}

void AdamW::ZeroGradients() {
  if (host_ == nullptr) gradients_->flat().zero_();
}

}  // namespace sluice::train
