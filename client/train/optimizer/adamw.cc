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

std::span<const stream::Round> RoundsOf(const std::vector<stream::Round>& all,
                                        int64_t part) {
  return {std::ranges::lower_bound(all, part, {}, &stream::Round::part),
          std::ranges::upper_bound(all, part, {}, &stream::Round::part)};
}

at::Tensor Slice(const FlatModel& of, const stream::Bucket& bucket) {
  return of.flat().narrow(0, bucket.offset, bucket.size);
}

at::Tensor Slice(const FlatModel& of, const stream::Round& round) {
  const int64_t begin = round.buckets.front().offset;
  const stream::Bucket& last = round.buckets.back();
  return of.flat().narrow(0, begin, last.offset + last.size - begin);
}

}  // namespace

std::vector<FlatEntry> FlatEntries(const stream::ModelShape& config) {
  runtime::ModelTensors unused;
  const auto named = runtime::NamedTensors(config, unused);
  const auto shapes = runtime::TensorShapes(config);
  std::vector<FlatEntry> entries;
  int64_t offset = 0;
  for (size_t i = 0; i < named.size(); ++i) {
    FlatEntry entry{named[i].name, shapes[i], offset, 1, shapes[i].size() > 1};
    for (const int64_t n : entry.shape) entry.size *= n;
    offset += entry.size;
    entries.push_back(std::move(entry));
  }
  return entries;
}

FlatModel::FlatModel(const stream::ModelShape& config, at::ScalarType dtype,
                     at::Device device)
    : shape_(config), entries_(FlatEntries(config)) {
  flat_ = at::zeros({entries_.back().offset + entries_.back().size},
                    runtime::On(device, dtype));
  const auto named = runtime::NamedTensors(config, tensors_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const FlatEntry& entry = entries_[i];
    *named[i].tensor =
        flat_.narrow(0, entry.offset, entry.size).view(entry.shape);
  }
}

absl::Status FlatModel::Set(const FlatEntry& entry, const at::Tensor& values,
                            runtime::HostStage& stage) {
  const at::Tensor typed = values.to(flat_.scalar_type());
  return stage.Write(flat_.narrow(0, entry.offset, entry.size),
                     typed.const_data_ptr());
}

absl::Status FlatModel::Initialize(const stream::ModelShape& config,
                                   uint64_t seed, runtime::HostStage& stage) {
  return runtime::DrawWeights(config, seed,
                              [&](size_t i, const at::Tensor& drawn) {
                                return Set(entries_[i], drawn, stage);
                              });
}

HostStates::HostStates(Options options)
    : options_(std::move(options)),
      units_(stream::CutStates(options_.model, options_.dtype, options_.ranks,
                               options_.rank)),
      slot_elements_(stream::SlotElements(options_.model, options_.dtype,
                                          options_.ranks, options_.rank)),
      written_(units_.size()) {
  const int64_t owned =
      stream::OwnedElements(options_.model, options_.ranks, options_.rank);
  const Bytes line(64);
  const int64_t bytes = RoundUp(Bytes(owned * 4), line).count();
  const int count = stream::StateTensors(options_.dtype);
  for (int i = 0; i < count; ++i) {
    tensors_.push_back(runtime::ViewOf(options_.host + i * bytes, {owned},
                                       at::kFloat, at::kCPU));
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

AdamW::AdamW(const AdamWOptions& options, FlatModel* weights,
             FlatModel* gradients, runtime::Collectives* collectives,
             std::unique_ptr<HostStates> host)
    : options_(options),
      weights_(weights),
      gradients_(gradients),
      collectives_(collectives),
      rank_(collectives != nullptr ? collectives->rank() : 0),
      rounds_(stream::CutRounds(
          weights->shape(),
          collectives != nullptr ? collectives->world_size() : 1)),
      parts_(rounds_.back().part + 1),
      host_(std::move(host)),
      reduced_from_(parts_),
      next_part_(parts_),
      next_gathered_(parts_) {
  for (const stream::Round& round : rounds_) {
    buckets_.insert(buckets_.end(), round.buckets.begin(), round.buckets.end());
  }
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

// Pieces are cut at tensor bounds, because weight decay differs by tensor.
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
      pieces_.push_back({.weight = weights_->flat().narrow(0, begin, n),
                         .gradient = gradients_->flat().narrow(0, begin, n),
                         .at = state_offset + begin - bucket.offset,
                         .size = n,
                         .decays = entry.decays});
    }
    state_offset += bucket.size;
  }
}

absl::Status AdamW::Move(
    int64_t part, const FlatModel& of,
    absl::Status (runtime::Collectives::*even)(at::Tensor&),
    absl::Status (runtime::Collectives::*single)(at::Tensor&, int)) {
  if (collectives_ == nullptr) return absl::OkStatus();
  for (const stream::Round& round : RoundsOf(rounds_, part)) {
    if (round.even) {
      at::Tensor all = Slice(of, round);
      SLUICE_RETURN_IF_ERROR((collectives_->*even)(all));
      continue;
    }
    for (const stream::Bucket& bucket : round.buckets) {
      at::Tensor own = Slice(of, bucket);
      SLUICE_RETURN_IF_ERROR((collectives_->*single)(own, bucket.owner));
    }
  }
  return absl::OkStatus();
}

absl::Status AdamW::Gather(int64_t part) {
  return Move(part, *weights_, &runtime::Collectives::BeginGather,
              &runtime::Collectives::Broadcast);
}

absl::Status AdamW::PartIsDone(int64_t part) {
  return last_sequence_ ? ReduceFrom(part) : absl::OkStatus();
}

absl::Status AdamW::ReduceFrom(int64_t part) {
  while (reduced_from_ > part) {
    SLUICE_RETURN_IF_ERROR(Move(--reduced_from_, *gradients_,
                                &runtime::Collectives::BeginSumScatter,
                                &runtime::Collectives::SumTo));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> AdamW::ReduceGradients() {
  SLUICE_RETURN_IF_ERROR(ReduceFrom(0));
  reduced_from_ = parts_;
  last_sequence_ = false;
  if (collectives_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(collectives_->AwaitBegun());
  }
  // Summed on the gradients' device: the host waits for one number only.
  at::Tensor squares =
      at::zeros({}, runtime::On(gradients_->flat().device(), at::kDouble));
  for (const stream::Bucket& bucket : buckets_) {
    if (bucket.owner != rank_) continue;
    const at::Tensor part = Slice(*gradients_, bucket);
    squares.add_(at::dot(part, part));
  }
  double sum = squares.item<double>();
  if (collectives_ != nullptr) {
    // An aborted collective leaves gradients that are not summed.
    SLUICE_RETURN_IF_ERROR(collectives_->Check());
    at::Tensor all = at::full({1}, sum, runtime::OnHost(at::kDouble));
    SLUICE_RETURN_IF_ERROR(collectives_->SumAll(all));
    sum = all.item<double>();
  }
  return std::sqrt(sum);
}

void AdamW::UpdatePieces(std::span<Piece> pieces) {
  if (scale_ != 1) {
    for (Piece& piece : pieces) piece.gradient.mul_(scale_);
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

absl::Status AdamW::Update(int64_t step, double norm) {
  SLUICE_CHECK(next_part_ == parts_);
  // Clips as torch's clip_grad_norm_ does, so that loss curves can be compared.
  const bool clips = options_.clip > 0 && norm > options_.clip;
  scale_ = clips ? options_.clip / (norm + 1e-6) : 1;
  lr_ = LearningRate(options_, step);
  // The kernel expects the count after this step, for its bias correction.
  step_.fill_(static_cast<double>(step + 1));
  next_unit_ = next_piece_ = 0;
  const bool pending = host_ != nullptr || collectives_ != nullptr;
  next_part_ = next_gathered_ = pending ? 0 : parts_;
  if (host_ != nullptr) {
    host_->Start();
  } else {
    UpdatePieces(pieces_);
  }
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

absl::Status AdamW::UpdatePart(int64_t part) {
  if (host_ == nullptr) return absl::OkStatus();
  while (next_unit_ < host_->units().size() &&
         host_->units()[next_unit_].part == part) {
    SLUICE_RETURN_IF_ERROR(UpdateUnit());
  }
  for (const stream::Round& round : RoundsOf(rounds_, part)) {
    Slice(*gradients_, round).zero_();
  }
  return absl::OkStatus();
}

absl::Status AdamW::AwaitPart(int64_t part) {
  for (; next_part_ <= part && next_part_ < parts_; ++next_part_) {
    for (; next_gathered_ <= next_part_; ++next_gathered_) {
      SLUICE_RETURN_IF_ERROR(UpdatePart(next_gathered_));
      SLUICE_RETURN_IF_ERROR(Gather(next_gathered_));
    }
    if (collectives_ != nullptr) {
      SLUICE_RETURN_IF_ERROR(collectives_->AwaitBegun());
    }
    if (host_ == nullptr && next_gathered_ < parts_) {
      SLUICE_RETURN_IF_ERROR(Gather(next_gathered_++));
    }
  }
  return absl::OkStatus();
}

absl::Status AdamW::Advance() {
  while (next_part_ < parts_ && host_ != nullptr &&
         next_unit_ < host_->units().size() && host_->Arrived()) {
    SLUICE_RETURN_IF_ERROR(UpdateUnit());
  }
  return absl::OkStatus();
}

absl::Status AdamW::FinishUpdate() {
  SLUICE_RETURN_IF_ERROR(AwaitPart(parts_ - 1));
  return host_ != nullptr ? host_->Settle() : absl::OkStatus();
}

void AdamW::ZeroGradients() {
  if (host_ == nullptr) gradients_->flat().zero_();
}

}  // namespace sluice::train
