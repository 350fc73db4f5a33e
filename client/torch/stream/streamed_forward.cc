// A layer's forward, chunk by chunk: norm, projections, attention to all
// earlier chunks, output projection, FFN. Also runs chunks again for backward.
#include <ATen/ops/add.h>

#include "client/torch/exceptions.h"
#include "client/torch/stream/streamed_attention.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

using enum stream::Class;
using enum stream::Segment;

class Forward {
 public:
  // Without `output` the forward stops after attention.
  Forward(StreamState& state, const LayerTensors& weights, ChunkHandle& input,
          ChunkHandle* output, int64_t layer, bool again)
      : state_(state),
        shape_(state.shape),
        weights_(weights),
        input_(input),
        output_(output),
        layer_(layer),
        again_(again),
        chunks_(again ? state.rerun : state.active),
        inputs_(&state.inputs(), std::ssize(chunks_), "x",
                [this](int64_t k, Fetch& fetch) {
                  fetch.Whole(input_.chunk(chunks_[k]));
                  return true;
                }),
        attention_(state, layer, chunks_) {}

  absl::Status Run() {
    for (const int64_t m : chunks_) {
      SLUICE_RETURN_IF_ERROR(Chunk(m));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Chunk(int64_t m) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, inputs_.Next());
    const at::Tensor x =
        slot->Take({shape_.local(m), shape_.hidden}, state_.dtype);
    SLUICE_RETURN_IF_ERROR(state_.staging().Begin());
    const Heads heads = TakeHeads(m);
    SLUICE_RETURN_IF_ERROR(Project(m, x, heads));
    if (heads.o.scalar_type() == at::kFloat) {
      SLUICE_RETURN_IF_ERROR(attention_.Run(m, heads, heads.o));
    } else {
      const at::Tensor sum = state_.output_sum(m);
      SLUICE_RETURN_IF_ERROR(attention_.Run(m, heads, sum));
      heads.o.copy_(sum);
    }
    if (again_ || !shape_.reruns(m) || !shape_.reruns_layer(layer_)) {
      state_.staging().Send(heads.o, state_.store.saved(layer_, kO, m));
      state_.staging().Send(heads.lse, state_.store.saved(layer_, kLse, m));
      state_.staging().Flush("o, lse out");
    }
    if (output_ != nullptr) return Post(m, x, heads);
    inputs_.Done();
    return absl::OkStatus();
  }

  Heads TakeHeads(int64_t m) {
    const int64_t rows = shape_.rows(m), queries = shape_.queries(m);
    const int64_t heads = shape_.q_heads, kv_heads = shape_.kv_heads;
    const at::ScalarType type = state_.dtype;
    const auto take = [&](stream::Class which, at::IntArrayRef sizes,
                          at::ScalarType type) {
      return state_.staging().TakeFor(state_.store.saved(layer_, which, m),
                                      sizes, type);
    };
    Heads taken;
    taken.q = take(kQ, {queries, heads, shape_.dim}, type);
    taken.k = take(kK, {rows, kv_heads, shape_.dim}, type);
    taken.v = take(kV, {rows, kv_heads, shape_.dim}, type);
    taken.o = take(kO, {queries, heads, shape_.dim}, state_.output_type());
    taken.lse = take(kLse, {heads, queries}, at::kFloat);
    return taken;
  }

  absl::Status Project(int64_t m, const at::Tensor& x, const Heads& heads) {
    const auto segment = state_.Segment(kQkvForward, m);
    RowWriter norm1 = state_.Write(layer_, kNorm1, m);
    const at::Tensor normed =
        NormForward(x, state_.Norm1(weights_), norm1.PlaceOf(0, x.size(0)));
    norm1.Store(0, normed);
    norm1.Send(state_.staging());
    HeadTensors to;
    if (state_.exchange.local()) to = heads;
    const HeadTensors local = runtime::Project(state_, weights_, normed, m, to);
    SLUICE_RETURN_IF_ERROR(
        state_.exchange.ToHeads(state_.Whole(m), QkvParts(local, heads)));
    // Dropped rows of q are sent only if this layer's backward is next: it then
    // need not project q again.
    SendHeads(state_, layer_, kQ, m, heads.q,
              /*with_dropped=*/again_ && output_ == nullptr);
    SendHeads(state_, layer_, kK, m, heads.k, /*with_dropped=*/true);
    SendHeads(state_, layer_, kV, m, heads.v, /*with_dropped=*/true);
    state_.staging().Flush("q, k, v out");
    return absl::OkStatus();
  }

  absl::Status Post(int64_t m, const at::Tensor& x, const Heads& heads) {
    const auto segment = state_.Segment(kPostForward, m);
    const at::Tensor o = heads.o.to(state_.dtype);
    SLUICE_ASSIGN_OR_RETURN(const at::Tensor home, state_.OutputHome(m, o));
    RowWriter residual = state_.Write(layer_, kX2, m);
    const at::Tensor x2 =
        LinearForward(home, weights_.o_weight, weights_.o_bias,
                      residual.PlaceOf(0, shape_.local(m)))
            .add_(x);
    residual.Store(0, x2);
    residual.Send(state_.staging());
    FeedForward(m, x2);
    inputs_.Done(state_.staging().Flush("layer out"));
    return absl::OkStatus();
  }

  void FeedForward(int64_t m, const at::Tensor& x2) {
    const at::Tensor y = state_.staging().TakeFor(
        output_->chunk(m), {shape_.local(m), shape_.hidden}, state_.dtype);
    RowWriter norm2 = state_.Write(layer_, kNorm2, m);
    RowWriter up_rows = state_.Write(layer_, kUp, m);
    RowWriter gate_rows = state_.Write(layer_, kGate, m);
    RowWriter act_rows = state_.Write(layer_, kAct, m);
    ForRows(shape_.local(m), shape_.ffn_rows, [&](int64_t row, int64_t n) {
      const at::Tensor residual = x2.narrow(0, row, n);
      const at::Tensor normed =
          NormForward(residual, state_.Norm2(weights_), norm2.PlaceOf(row, n));
      norm2.Store(row, normed);
      const at::Tensor up =
          LinearForward(normed, weights_.up_weight, weights_.up_bias,
                        up_rows.PlaceOf(row, n));
      up_rows.Store(row, up);
      at::Tensor gate;
      if (shape_.gated) {
        gate = LinearForward(normed, weights_.gate_weight, {},
                             gate_rows.PlaceOf(row, n));
        gate_rows.Store(row, gate);
      }
      const at::Tensor act =
          ActivationForward(gate, up, act_rows.PlaceOf(row, n));
      act_rows.Store(row, act);
      at::Tensor out = y.narrow(0, row, n);
      at::add_out(out,
                  LinearForward(act, weights_.down_weight, weights_.down_bias),
                  residual);
    });
    for (const RowWriter* rows : {&norm2, &up_rows, &gate_rows, &act_rows}) {
      rows->Send(state_.staging());
    }
    state_.staging().Send(y, output_->chunk(m));
  }

  StreamState& state_;
  const stream::StreamShape& shape_;
  const LayerTensors& weights_;
  ChunkHandle& input_;
  ChunkHandle* output_;
  const int64_t layer_;
  const bool again_;
  const std::vector<int64_t>& chunks_;
  Fetches inputs_;
  AttentionForward attention_;
};

}  // namespace

absl::Status LayerForward(StreamState& state, const LayerTensors& weights,
                          ChunkHandle& input, ChunkHandle* output,
                          int64_t layer, bool again) {
  const char* const what =
      again ? "a streamed layer run again" : "forward of a streamed layer";
  return CatchStatus(what, [&]() -> absl::Status {
    SLUICE_RETURN_IF_ERROR(state.Enter(stream::Phase::kForward));
    return Forward(state, weights, input, output, layer, again).Run();
  });
}

}  // namespace sluice::runtime
