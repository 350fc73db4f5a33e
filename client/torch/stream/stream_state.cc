#include "client/torch/stream/stream_state.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "client/torch/backend/backend.h"
#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

using enum stream::Class;

std::vector<int64_t> Rerun(const stream::StreamShape& shape,
                           std::vector<int64_t> chunks) {
  std::erase_if(chunks, [&](int64_t m) { return !shape.reruns(m); });
  return chunks;
}

absl::Status AwaitUses(std::initializer_list<const Ring*> rings) {
  for (const Ring* ring : rings) {
    SLUICE_RETURN_IF_ERROR(ring->AwaitUses());
  }
  return absl::OkStatus();
}

}  // namespace

StreamState::StreamState(const Options& o)
    : options(o),
      shape(o.stream),
      dtype(TorchType(o.stream.dtype)),
      active(shape.active_chunks()),
      rerun(Rerun(shape, active)),
      store(shape, o.device, o.host),
      kept(shape, o.device),
      exchange(o.stream.model.heads, o.stream.model.kv_heads, shape.ranks,
               o.stream.rank, o.collectives),
      memory_(at::empty({shape.ring_bytes()}, On(o.device, at::kByte))) {}

StreamState::~StreamState() {
  saved_rows.reset();  // before its ring
  copies().Drain().IgnoreError();
}

absl::Status StreamState::Enter(stream::Phase phase) {
  if (rings_ != nullptr && rings_->phase == phase) return absl::OkStatus();
  const bool failed = next_ != nullptr && next_->phase != phase;
  // A failed step may have left fetches.
  if (phase != stream::Phase::kTokens) saved_rows.reset();
  for (Rings* rings : {rings_.get(), failed ? next_.get() : nullptr}) {
    if (rings == nullptr) continue;
    SLUICE_RETURN_IF_ERROR(
        AwaitUses({&rings->staging, &rings->inputs, &rings->blocks,
                   &rings->gradients, &rings->outer}));
  }
  if (failed) next_.reset();
  const client::Ticket free = copies().MarkCompute();
  rings_ = next_ != nullptr ? std::move(next_) : Cut(phase, free, nullptr);
  for (FetchRing* ring :
       {&rings_->inputs, &rings_->blocks, &rings_->gradients, &rings_->outer}) {
    ring->Unblock(free);
  }
  unsent_ = -1;
  return absl::OkStatus();
}

absl::Status StreamState::Prepare(stream::Phase next, int64_t unsent) {
  SLUICE_RETURN_IF_ERROR(
      AwaitUses({&rings_->blocks, &rings_->gradients, &rings_->outer}));
  next_ = Cut(next, copies().MarkCompute(), rings_->front_end);
  unsent_ = unsent;
  return absl::OkStatus();
}

// Lays out the rings of `phase`. In backward the first fetches use memory that
// the former phase no longer needs while its last chunk is computed. That is
// why the attention phase's inner and outer rings lie at the end, and the token
// phase's inputs behind its staging ring.
std::unique_ptr<StreamState::Rings> StreamState::Cut(
    stream::Phase phase, const client::Ticket& free,
    const std::byte* in_use_to) {
  const stream::RingSizes sizes = shape.rings(phase);
  auto* front = static_cast<std::byte*>(memory_.data_ptr());
  std::byte* end = front + memory_.numel();
  const auto take = [&](int64_t bytes) {
    return std::exchange(front, front + bytes);
  };
  const auto ring = [&]<typename R>(std::byte* data, int64_t slot_bytes,
                                    int slots) {
    return R(
        options.copies,
        {memory_.device(), data, slot_bytes, slots, options.pending, in_use_to},
        free);
  };
  const auto back = [&](int64_t slot_bytes, int slots) {
    end -= slots * slot_bytes;
    return ring.operator()<FetchRing>(end, slot_bytes, slots);
  };
  // Returns an undefined tensor if this phase has no such sum.
  const auto sum = [&](int64_t bytes, int64_t rows, int64_t heads) {
    if (bytes == 0 && rows > 0) return at::Tensor();
    return ViewOf(take(bytes), {rows, heads, shape.dim}, at::kFloat,
                  memory_.device());
  };
  const auto key_sum = [&] {
    return sum(sizes.key_sum, shape.rows(0), shape.kv_heads);
  };
  // Braces evaluate in order, and so lay out the memory in this order.
  return std::unique_ptr<Rings>(new Rings{
      phase,
      ring.operator()<StagingRing>(take(2 * sizes.staging), sizes.staging, 2),
      ring.operator()<FetchRing>(take(2 * sizes.inputs), sizes.inputs, 2),
      sum(sizes.query_sum, shape.queries(0), shape.q_heads), key_sum(),
      key_sum(), front, back(sizes.blocks, shape.prefetch_depth),
      back(sizes.outer, 2), back(sizes.gradients, shape.prefetch_depth)});
}

absl::StatusOr<std::unique_ptr<ChunkHandle>> StreamState::NewHidden() {
  const int64_t unit = store.TakeHidden();
  if (unit < 0) {
    return absl::FailedPreconditionError(fmt::format(
        "all {} hidden states of the host arena are in use: a layer's input "
        "is given back by its backward",
        shape.layers + 1));
  }
  return std::make_unique<ChunkHandle>(&store, unit);
}

RowWriter StreamState::Write(int64_t layer, stream::Class which, int64_t m) {
  const int64_t width = shape.row_bytes(which) / shape.element;
  return {kept.rows(layer, which, m, width, dtype),
          staging().Take({shape.stored(which, m), width}, dtype),
          store.saved(layer, which, m)};
}

RowReader StreamState::Read(int64_t layer, stream::Class which, int64_t m,
                            Slot& slot) {
  const int64_t width = shape.row_bytes(which) / shape.element;
  return {kept.rows(layer, which, m, width, dtype),
          slot.Take({shape.stored(which, m), width}, dtype)};
}

RowRuns StreamState::Dropped(stream::Class which, int64_t m) const {
  RowRuns runs;
  int64_t at = 0;
  for (int64_t p = 0; p < shape.ranks; ++p) {
    const int64_t rows =
        shape.layout.local_rows(m, p) - shape.present_of(which, m, p);
    runs.begin.push_back(at);
    runs.count.push_back(rows);
    at += rows;
  }
  return runs;
}

// Gradients of a resident class are summed in place.
at::Tensor StreamState::sum(stream::Class gradient, int64_t m) {
  const bool query = gradient == kQueryGradient;
  const int64_t rows = shape.class_rows(gradient, m);
  if (!shape.resident(gradient) || shape.row_bytes(gradient) == 0) {
    const at::Tensor& largest = query                      ? rings_->query_sum
                                : gradient == kKeyGradient ? rings_->key_sum
                                                           : rings_->value_sum;
    return largest.narrow(0, 0, rows);
  }
  return ViewOf(store.scratch(gradient, m).data,
                {rows, query ? shape.q_heads : shape.kv_heads, shape.dim},
                at::kFloat, options.device);
}

absl::StatusOr<at::Tensor> StreamState::OutputHome(int64_t m,
                                                   const at::Tensor& o) {
  at::Tensor home = o;
  if (!exchange.local()) {
    home = at::empty({shape.local(m), model().heads, shape.dim}, o.options());
  }
  SLUICE_RETURN_IF_ERROR(
      exchange.ToTokens(Whole(m), {{HeadKind::kQuery, home, o}}));
  return home.view({shape.local(m), model().query_width()});
}

RopeTables StreamState::Rope(int64_t m, int64_t skip) const {
  if (!rope()) return {};
  const int64_t begin =
      shape.layout.begin(m) + shape.layout.local_offset(m, shape.rank) + skip;
  return MakeRopeTables(begin, shape.local(m) - skip, shape.dim,
                        options.stream.model.rope->theta, options.device);
}

absl::StatusOr<std::unique_ptr<StreamContext>> StreamContext::Create(
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(stream::Validate(options.stream));
  if (options.copies == nullptr ||
      (options.stream.layout.ranks() > 1 && options.collectives == nullptr)) {
    return absl::InvalidArgumentError(
        "a streamed step needs a copy engine, and collectives when there are "
        "several ranks");
  }
  SLUICE_RETURN_IF_ERROR(CheckBackend(options.device,
                                      TorchType(options.stream.dtype),
                                      options.stream.model.head_dim()));
  const Bytes needed(stream::StreamShape(options.stream).host_bytes());
  if (needed > options.host_size) {
    return ShortOf(Shortage::kHostMemory,
                   fmt::format("a step of {} tokens needs {} bytes of host "
                               "memory for this rank, the "
                               "leased region has {}",
                               options.stream.layout.seq_len(), needed.count(),
                               options.host_size.count()));
  }
  using Result = absl::StatusOr<std::unique_ptr<StreamContext>>;
  return CatchStatus(
      "allocate the rings of the streamed layer",
      [&]() -> Result { return std::make_unique<StreamState>(options); });
}

// --- pieces shared by forward and recomputation -----------------------------

at::Tensor ProjectOne(const StreamState& state, const LayerTensors& weights,
                      stream::Class which, const at::Tensor& normed,
                      const RopeTables& tables, const at::Tensor& to) {
  const bool query = which == kQ, key = which == kK;
  const at::Tensor& weight = query ? weights.q_weight
                             : key ? weights.k_weight
                                   : weights.v_weight;
  const at::Tensor& bias = query ? weights.q_bias
                           : key ? weights.k_bias
                                 : weights.v_bias;
  const stream::ModelShape& model = state.model();
  const int64_t rows = normed.size(0);
  const at::Tensor out =
      LinearForward(normed, weight, bias,
                    to.defined() ? to.view({rows, weight.size(0)}) : to)
          .view({rows, query ? model.heads : model.kv_heads, state.shape.dim});
  if (!state.rope() || !(query || key)) return out;
  return ApplyRope(out, tables, /*inverse=*/false, state.dtype);
}

HeadTensors Project(const StreamState& state, const LayerTensors& weights,
                    const at::Tensor& normed, int64_t m,
                    const HeadTensors& to) {
  const RopeTables tables = state.Rope(m, 0);
  return {ProjectOne(state, weights, kQ, normed, tables, to.q),
          ProjectOne(state, weights, kK, normed, tables, to.k),
          ProjectOne(state, weights, kV, normed, tables, to.v)};
}

void FetchHeads(StreamState& state, int64_t layer, stream::Class which,
                int64_t m, Fetch& fetch) {
  if (state.shape.resident(which)) {
    return fetch.Whole(state.store.saved(layer, which, m));
  }
  const int64_t row_bytes = state.shape.row_bytes(which);
  fetch.Field(state.shape.chunk_bytes(which, m));
  for (const stream::RowPiece& piece : state.shape.pieces(which, m)) {
    ChunkBuffer& from = piece.stored ? state.store.saved(layer, which, m)
                                     : state.store.scratch(which, m);
    fetch.Piece(from, piece.place * row_bytes, piece.row * row_bytes,
                piece.rows * row_bytes);
  }
}

void SendHeads(StreamState& state, int64_t layer, stream::Class which,
               int64_t m, const at::Tensor& heads, bool with_dropped) {
  const int64_t row_bytes = state.shape.row_bytes(which);
  for (const stream::RowPiece& piece : state.shape.pieces(which, m)) {
    if (!piece.stored && !with_dropped) continue;
    ChunkBuffer& to = piece.stored ? state.store.saved(layer, which, m)
                                   : state.store.scratch(which, m);
    state.staging().Send(heads.narrow(0, piece.row, piece.rows), to,
                         piece.place * row_bytes);
  }
}

}  // namespace sluice::runtime
