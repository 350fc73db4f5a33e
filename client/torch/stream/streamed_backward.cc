// A layer's backward, after the chunks that run again have run:
//   A  one chunk at a time: recompute dropped rows, backward of FFN and output
//      projection, dO to head layout and to host memory;
//   B  blocks of attention, in either order (streamed_attention.h);
//   C  as each chunk's dq, dk, dv become complete: backward of projections and
//      norm.
#include <ATen/ops/empty.h>

#include <map>

#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "client/torch/stream/streamed_attention.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

using enum stream::Class;
using enum stream::Segment;
using stream::Phase;

// Issues the first fetches of a layer's phase A.
void FetchSavedRows(StreamState& state, int64_t layer, ChunkHandle& input,
                    ChunkHandle& gradient) {
  const std::vector<int64_t> order =
      stream::OuterChunks(state.active, state.shape.order);
  state.saved_rows.emplace(
      &state.inputs(), std::ssize(order), "saved rows",
      [&state, &input, &gradient, order, layer](int64_t k, Fetch& fetch) {
        const int64_t m = order[k];
        if (m == state.unsent()) return false;
        fetch.Whole(gradient.chunk(m));
        fetch.Whole(input.chunk(m));
        fetch.Whole(state.store.saved(layer, kO, m));
        for (const stream::Class which : stream::kPostClasses) {
          fetch.Whole(state.store.saved(layer, which, m));
        }
        return true;
      });
}

class Backward {
 public:
  Backward(StreamState& state, const LayerTensors& weights,
           LayerTensors& gradients, ChunkHandle& input, ChunkHandle& gradient,
           int64_t layer, ChunkHandle* next_input)
      : state_(state),
        shape_(state.shape),
        weights_(weights),
        gradients_(gradients),
        layer_(layer),
        input_(input),
        gradient_(gradient),
        next_input_(next_input),
        order_(stream::OuterChunks(state.active, shape_.order)) {}

  absl::Status Run() {
    SLUICE_RETURN_IF_ERROR(PhaseA());
    return PhasesBandC();
  }

 private:
  struct PostInputs {
    at::Tensor dy, x, o;
    RowReader x2, norm2, up, gate, act;
  };
  // The tensors from which rows of a layer's second half were computed.
  struct PostRows {
    at::Tensor x2, norm2, up, gate, act;
  };

  absl::Status PhaseA() {
    SLUICE_RETURN_IF_ERROR(state_.Enter(Phase::kTokens));
    std::optional<Fetches>& inputs = state_.saved_rows;
    if (!inputs.has_value()) FetchSavedRows(state_, layer_, input_, gradient_);
    for (const int64_t m : order_) {
      SLUICE_ASSIGN_OR_RETURN(Slot * slot, inputs->Next());
      const PostInputs in = TakePost(*slot, m);
      SLUICE_RETURN_IF_ERROR(state_.staging().Begin());
      if (Last(m)) {
        SLUICE_RETURN_IF_ERROR(state_.Prepare(Phase::kAttention, m));
        attention_.emplace(state_, layer_);
      }
      SLUICE_RETURN_IF_ERROR(PostChunk(m, in));
      SLUICE_RETURN_IF_ERROR(Recompute(m, in.x));
      inputs->Done();
    }
    inputs.reset();
    return absl::OkStatus();
  }

  absl::Status PhasesBandC() {
    SLUICE_RETURN_IF_ERROR(state_.Enter(Phase::kAttention));
    // Attention's fetches are issued before those of phase C.
    if (!attention_.has_value()) attention_.emplace(state_, layer_);
    attention_->Pump();
    Fetches inputs(&state_.inputs(), std::ssize(order_), "x, dX",
                   [&](int64_t k, Fetch& fetch) {
                     const int64_t m = order_[k];
                     fetch.Whole(input_.chunk(m));
                     fetch.Whole(gradient_.chunk(m));
                     fetch.Whole(state_.store.saved(layer_, kNorm1, m));
                     return true;
                   });
    SLUICE_RETURN_IF_ERROR(attention_->Run(
        [&](int64_t m) { return ProjectionsChunk(m, inputs); }));
    state_.kept.Dead(layer_);
    state_.store.Dead(layer_);
    return absl::OkStatus();
  }

  // Returns whether the next phase's first fetches may arrive while chunk `m`
  // is computed: it is the last chunk, and not also the first.
  bool Last(int64_t m) const { return order_.size() > 1 && m == order_.back(); }
  PostInputs TakePost(Slot& slot, int64_t m) {
    const std::array<int64_t, 2> hidden = {shape_.local(m), shape_.hidden};
    const auto read = [&](stream::Class which) {
      return state_.Read(layer_, which, m, slot);
    };
    // Braces evaluate in order, which is the order of the fetch.
    return {slot.Take(hidden, state_.dtype),
            slot.Take(hidden, state_.dtype),
            slot.Take({shape_.queries(m), shape_.q_heads, shape_.dim},
                      state_.output_type()),
            read(kX2),
            read(kNorm2),
            read(kUp),
            read(kGate),
            read(kAct)};
  }

  absl::Status PostChunk(int64_t m, const PostInputs& in) {
    const int64_t rows = shape_.local(m);
    ChunkBuffer& dx2_buffer = gradient_.chunk(m);
    ChunkBuffer& d_o_buffer = state_.store.scratch(kOutputGradient, m);
    const at::Tensor dx2 = state_.staging().TakeFor(
        dx2_buffer, {rows, shape_.hidden}, state_.dtype);
    const at::Tensor d_o =
        state_.staging().TakeFor(d_o_buffer, in.o.sizes(), state_.dtype);
    {
      const auto segment = state_.Segment(kPostBackward, m);
      const at::Tensor o = in.o.to(state_.dtype);
      SLUICE_ASSIGN_OR_RETURN(const at::Tensor home, state_.OutputHome(m, o));
      ForRows(rows, shape_.ffn_rows, [&](int64_t row, int64_t n) {
        FeedForward(in.dy.narrow(0, row, n), RowsOf(in, home, row, n),
                    dx2.narrow(0, row, n));
      });
      LinearBackwardWeight(home,
                           {{dx2, gradients_.o_weight, gradients_.o_bias}});
      const at::Tensor d_home =
          LinearBackwardInput(
              dx2, weights_.o_weight,
              state_.exchange.local() ? d_o.view(home.sizes()) : at::Tensor())
              .view({rows, state_.model().heads, shape_.dim});
      SLUICE_RETURN_IF_ERROR(state_.exchange.ToHeads(
          state_.Whole(m), {{HeadKind::kQuery, d_home, d_o}}));
    }
    state_.staging().Send(dx2, dx2_buffer);
    state_.staging().Send(d_o, d_o_buffer);
    state_.staging().Flush("dO, dX out");
    return absl::OkStatus();
  }

  // Computes dropped rows as in forward. `home` is o in token layout.
  PostRows RowsOf(const PostInputs& in, const at::Tensor& home, int64_t row,
                  int64_t rows) const {
    PostRows out;
    out.x2 = in.x2.Rows(row, rows, [&](int64_t at, int64_t n) {
      return LinearForward(home.narrow(0, at, n), weights_.o_weight,
                           weights_.o_bias)
          .add_(in.x.narrow(0, at, n));
    });
    const auto part = [row](const at::Tensor& t, int64_t at, int64_t n) {
      return t.narrow(0, at - row, n);
    };
    out.norm2 = in.norm2.Rows(row, rows, [&](int64_t at, int64_t n) {
      return NormForward(part(out.x2, at, n), state_.Norm2(weights_));
    });
    out.up = in.up.Rows(row, rows, [&](int64_t at, int64_t n) {
      return LinearForward(part(out.norm2, at, n), weights_.up_weight,
                           weights_.up_bias);
    });
    if (shape_.gated) {
      out.gate = in.gate.Rows(row, rows, [&](int64_t at, int64_t n) {
        return LinearForward(part(out.norm2, at, n), weights_.gate_weight, {});
      });
    }
    out.act = in.act.Rows(row, rows, [&](int64_t at, int64_t n) {
      const at::Tensor gate =
          shape_.gated ? part(out.gate, at, n) : at::Tensor();
      return ActivationForward(gate, part(out.up, at, n));
    });
    return out;
  }

  // Runs backward of FFN and norm2. dx2 may be dy's memory: a row is written
  // only after that row of dy has been read.
  void FeedForward(const at::Tensor& dy, PostRows saved,
                   const at::Tensor& dx2) {
    const auto& [x2, norm2, up, gate, act] = saved;
    LinearBackwardWeight(act,
                         {{dy, gradients_.down_weight, gradients_.down_bias}});
    saved.act.reset();
    ActivationGradients d = ActivationBackward(
        LinearBackwardInput(dy, weights_.down_weight), gate, up);
    const LinearGradients of_up = {d.up, gradients_.up_weight,
                                   gradients_.up_bias};
    if (shape_.gated) {
      at::Tensor none;
      LinearBackwardWeight(norm2,
                           {of_up, {d.gate, gradients_.gate_weight, none}});
    } else {
      LinearBackwardWeight(norm2, {of_up});
    }
    std::vector<at::Tensor> dnorm = {
        LinearBackwardInput(d.up, weights_.up_weight)};
    if (shape_.gated) {
      dnorm.push_back(LinearBackwardInput(d.gate, weights_.gate_weight));
    }
    d = {};
    NormBackward(x2, dnorm, dy, state_.Norm2(weights_),
                 {gradients_.norm2_weight, gradients_.norm2_bias}, dx2);
  }

  // Recomputes the dropped rows of q, k, v into scratch, once. All ranks agree
  // on whether there are any: they have the same fractions of these classes.
  absl::Status Recompute(int64_t m, const at::Tensor& x) {
    if (shape_.reruns(m) && shape_.rerun_end(layer_)) return absl::OkStatus();
    std::map<stream::Class, at::Tensor> again;
    for (const stream::Class which : stream::kHeadClasses) {
      if (!shape_.any_dropped(which, m)) continue;
      const int64_t heads = which == kQ ? shape_.q_heads : shape_.kv_heads;
      again[which] = state_.staging().Take(
          {shape_.head_dropped(which, m), heads, shape_.dim}, state_.dtype);
    }
    if (again.empty()) return absl::OkStatus();
    {
      const auto segment = state_.Segment(kQkvRecompute, m);
      SLUICE_RETURN_IF_ERROR(ProjectAgain(m, x, again));
    }
    for (const auto& [which, rows] : again) {
      state_.staging().Send(rows, state_.store.scratch(which, m));
    }
    state_.staging().Flush("q, k, v again");
    return absl::OkStatus();
  }

  // Projects dropped rows. Classes cut at the same rows share an exchange.
  absl::Status ProjectAgain(int64_t m, const at::Tensor& x,
                            const std::map<stream::Class, at::Tensor>& to) {
    int64_t first = x.size(0);
    for (const auto& [which, rows] : to) {
      first = std::min(first, shape_.present(which, m));
    }
    const int64_t all = x.size(0) - first;
    const at::Tensor normed =
        NormForward(x.narrow(0, first, all), state_.Norm1(weights_));
    const RopeTables tables = state_.Rope(m, first);
    std::vector<ExchangePart> parts;
    for (auto at = to.begin(); at != to.end(); ++at) {
      const stream::Class which = at->first;
      const int64_t skip = shape_.present(which, m) - first, n = all - skip;
      RopeTables own = tables;
      if (state_.rope()) {
        own = {tables.cos.narrow(0, skip, n), tables.sin.narrow(0, skip, n)};
      }
      parts.push_back(
          {which == kQ ? HeadKind::kQuery : HeadKind::kKeyValue,
           ProjectOne(state_, weights_, which, normed.narrow(0, skip, n), own,
                      state_.exchange.local() ? at->second : at::Tensor()),
           at->second});
      const auto next = std::next(at);
      if (next != to.end() &&
          shape_.fractions(next->first) == shape_.fractions(which)) {
        continue;
      }
      SLUICE_RETURN_IF_ERROR(
          state_.exchange.ToHeads(state_.Dropped(which, m), parts));
      parts.clear();
    }
    return absl::OkStatus();
  }

  absl::Status ProjectionsChunk(int64_t m, Fetches& inputs) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, inputs.Next());
    const std::array<int64_t, 2> sizes = {shape_.local(m), shape_.hidden};
    const at::Tensor x = slot->Take(sizes, state_.dtype);
    const at::Tensor dx2 = slot->Take(sizes, state_.dtype);
    const RowReader norm1 = state_.Read(layer_, kNorm1, m, *slot);
    SLUICE_RETURN_IF_ERROR(state_.staging().Begin());
    const at::Tensor dx =
        state_.staging().TakeFor(gradient_.chunk(m), sizes, state_.dtype);
    if (next_input_ != nullptr && Last(m)) {
      SLUICE_RETURN_IF_ERROR(state_.Prepare(Phase::kTokens, m));
      FetchSavedRows(state_, layer_ - 1, *next_input_, gradient_);
    }
    {
      const auto segment = state_.Segment(kQkvBackward, m);
      SLUICE_ASSIGN_OR_RETURN(const HeadTensors d, GradientsHome(m));
      if (sizes[0] > 0) Projections(m, x, dx2, norm1, d, dx);
    }
    state_.staging().Send(dx, gradient_.chunk(m));
    inputs.Done(state_.staging().Flush("dX out"));
    return absl::OkStatus();
  }

  void Projections(int64_t m, const at::Tensor& x, const at::Tensor& dx2,
                   const RowReader& norm1, const HeadTensors& d,
                   const at::Tensor& dx) {
    const int64_t rows = shape_.local(m);
    const at::Tensor dq = d.q.view({rows, -1});
    const at::Tensor dk = d.k.view({rows, -1});
    const at::Tensor dv = d.v.view({rows, -1});
    at::Tensor normed = norm1.Rows(0, rows, [&](int64_t at, int64_t n) {
      return NormForward(x.narrow(0, at, n), state_.Norm1(weights_));
    });
    LinearBackwardWeight(normed,
                         {{dq, gradients_.q_weight, gradients_.q_bias},
                          {dk, gradients_.k_weight, gradients_.k_bias},
                          {dv, gradients_.v_weight, gradients_.v_bias}});
    normed.reset();
    NormBackward(x,
                 {LinearBackwardInput(dq, weights_.q_weight),
                  LinearBackwardInput(dk, weights_.k_weight),
                  LinearBackwardInput(dv, weights_.v_weight)},
                 dx2, state_.Norm1(weights_),
                 {gradients_.norm1_weight, gradients_.norm1_bias}, dx);
  }

  // Returns dq, dk, dv of chunk m in token layout, with RoPE undone, and
  // rounded as plain torch rounds them.
  absl::StatusOr<HeadTensors> GradientsHome(int64_t m) {
    const stream::ModelShape& model = state_.model();
    const HeadTensors sums{state_.sum(kQueryGradient, m),
                           state_.sum(kKeyGradient, m),
                           state_.sum(kValueGradient, m)};
    HeadTensors d = sums;
    if (!state_.exchange.local()) {
      const auto home = [&](int64_t heads) {
        return at::empty({shape_.local(m), heads, shape_.dim},
                         On(state_.options.device, at::kFloat));
      };
      d = {home(model.heads), home(model.kv_heads), home(model.kv_heads)};
    }
    SLUICE_RETURN_IF_ERROR(
        state_.exchange.ToTokens(state_.Whole(m), QkvParts(d, sums)));
    if (state_.rope()) {
      const RopeTables tables = state_.Rope(m, 0);
      d.q = ApplyRope(d.q, tables, /*inverse=*/true, state_.dtype);
      d.k = ApplyRope(d.k, tables, /*inverse=*/true, state_.dtype);
    }
    for (at::Tensor* const t : {&d.q, &d.k, &d.v}) *t = t->to(state_.dtype);
    return d;
  }

  StreamState& state_;
  const stream::StreamShape& shape_;
  const LayerTensors& weights_;
  LayerTensors& gradients_;
  const int64_t layer_;
  ChunkHandle& input_;
  ChunkHandle& gradient_;  // dY, then dX2, then dX, chunk by chunk in place
  ChunkHandle* const next_input_;  // null: another phase is next
  // Attention's outer chunks. A phase begins with the chunks that the phase
  // before finished first.
  const std::vector<int64_t> order_;
  std::optional<AttentionBackward> attention_;
};

}  // namespace

absl::Status LayerBackward(StreamState& state, const LayerTensors& weights,
                           LayerTensors& gradients, ChunkHandle& input,
                           ChunkHandle& gradient, int64_t layer,
                           ChunkHandle* next_input) {
  return CatchStatus("backward of a streamed layer", [&] {
    return Backward(state, weights, gradients, input, gradient, layer,
                    next_input)
        .Run();
  });
}

}  // namespace sluice::runtime
