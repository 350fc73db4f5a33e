#include "client/torch/stream/streamed_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "client/torch/stream/stream_state.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

using enum stream::Segment;
using stream::Phase;

class Step {
 public:
  Step(StreamState& state, const ModelTensors& weights, ModelTensors& gradients,
       const at::Tensor& tokens, const at::Tensor& labels, int64_t global_count)
      : state_(state),
        shape_(state.shape),
        weights_(weights),
        gradients_(gradients),
        tokens_(tokens),
        labels_(labels),
        pending_(state.options.pending != nullptr ? *state.options.pending
                                                  : up_to_date_),
        scale_(1.0 / static_cast<double>(std::max<int64_t>(global_count, 1))),
        loss_sum_(at::zeros({}, On(state.options.device, at::kDouble))) {}

  absl::StatusOr<StepResult> Run() {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ChunkHandle> hidden,
                            state_.NewHidden());
    SLUICE_RETURN_IF_ERROR(pending_.AwaitPart(0));
    SLUICE_RETURN_IF_ERROR(Embed(*hidden));
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      SLUICE_RETURN_IF_ERROR(pending_.AwaitPart(1 + layer));
      SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ChunkHandle> output,
                              state_.NewHidden());
      SLUICE_RETURN_IF_ERROR(LayerForward(state_, weights_.layers[layer],
                                          *hidden, output.get(), layer,
                                          /*again=*/false));
      inputs_.push_back(std::exchange(hidden, std::move(output)));
    }
    SLUICE_RETURN_IF_ERROR(pending_.AwaitPart(1 + shape_.layers));
    SLUICE_RETURN_IF_ERROR(Loss(*hidden));
    SLUICE_RETURN_IF_ERROR(pending_.PartIsDone(1 + shape_.layers));
    for (int64_t layer = shape_.layers - 1; layer >= 0; --layer) {
      if (shape_.rerun_end(layer)) SLUICE_RETURN_IF_ERROR(RerunGroup(layer));
      const bool follows = layer > 0 && !shape_.rerun_end(layer - 1);
      SLUICE_RETURN_IF_ERROR(
          LayerBackward(state_, weights_.layers[layer],
                        gradients_.layers[layer], *inputs_[layer], *hidden,
                        layer, follows ? inputs_[layer - 1].get() : nullptr));
      inputs_.pop_back();
      SLUICE_RETURN_IF_ERROR(pending_.PartIsDone(1 + layer));
    }
    SLUICE_RETURN_IF_ERROR(EmbedBackward(*hidden));
    SLUICE_RETURN_IF_ERROR(pending_.PartIsDone(0));
    return ReadResult(loss_sum_, labels_);
  }

 private:
  absl::Status Embed(ChunkHandle& output) {
    SLUICE_RETURN_IF_ERROR(state_.Enter(Phase::kForward));
    for (const int64_t m : state_.active) {
      SLUICE_RETURN_IF_ERROR(state_.staging().Begin());
      at::Tensor x = state_.staging().TakeFor(
          output.chunk(m), {shape_.local(m), shape_.hidden}, state_.dtype);
      {
        const auto segment = state_.Segment(kEmbedForward, m);
        at::index_select_out(x, weights_.embed, 0, Local(tokens_, m));
        if (weights_.positions.defined()) {
          x.add_(Positions(weights_.positions, m));
        }
      }
      state_.staging().Send(x, output.chunk(m));
      state_.staging().Flush("embedding out");
    }
    return absl::OkStatus();
  }

  // Overwrites the last layer's output with its gradient, group by group.
  absl::Status Loss(ChunkHandle& hidden) {
    SLUICE_RETURN_IF_ERROR(state_.Enter(Phase::kTokens));
    const std::vector<stream::LossGroup> groups = shape_.loss_groups();
    Fetches inputs(&state_.inputs(), std::ssize(groups), "y",
                   [&](int64_t k, Fetch& fetch) {
                     FetchGroup(groups[k], hidden, fetch);
                     return true;
                   });
    for (const stream::LossGroup& group : groups) {
      SLUICE_ASSIGN_OR_RETURN(Slot * slot, inputs.Next());
      const std::array<int64_t, 2> sizes = {shape_.loss_rows(group),
                                            shape_.hidden};
      const at::Tensor x = slot->Take(sizes, state_.dtype);
      SLUICE_RETURN_IF_ERROR(state_.staging().Begin());
      const at::Tensor dx = shape_.resident(stream::Class::kInput, group.first)
                                ? x
                                : state_.staging().Take(sizes, state_.dtype);
      {
        const SegmentScope segment(state_.options.allocator,
                                   stream::KindOf(kLoss, group.full));
        if (x.size(0) > 0) LossOf(x, LabelsOf(group), dx);
      }
      SendGroup(group, dx, hidden);
      inputs.Done(state_.staging().Flush("dY out"));
    }
    return absl::OkStatus();
  }

  void FetchGroup(const stream::LossGroup& group, ChunkHandle& hidden,
                  Fetch& fetch) const {
    if (shape_.resident(stream::Class::kInput, group.first)) {
      return fetch.Space(hidden.chunk(group.first));
    }
    fetch.Field(shape_.loss_rows(group) * shape_.hidden * shape_.element);
    int64_t at = 0;
    for (int64_t m = group.first; m < group.first + group.chunks; ++m) {
      ChunkBuffer& from = hidden.chunk(m);
      fetch.Piece(from, 0, at, from.size);
      at += from.size;
    }
  }

  void SendGroup(const stream::LossGroup& group, const at::Tensor& rows,
                 ChunkHandle& hidden) {
    int64_t row = 0;
    for (int64_t m = group.first; m < group.first + group.chunks; ++m) {
      state_.staging().Send(rows.narrow(0, row, shape_.local(m)),
                            hidden.chunk(m));
      row += shape_.local(m);
    }
  }

  absl::Status RerunGroup(int64_t last) {
    for (int64_t layer = last + 1 - shape_.rerun_layers; layer <= last;
         ++layer) {
      SLUICE_RETURN_IF_ERROR(
          LayerForward(state_, weights_.layers[layer], *inputs_[layer],
                       layer < last ? inputs_[layer + 1].get() : nullptr, layer,
                       /*again=*/true));
    }
    return absl::OkStatus();
  }

  absl::Status EmbedBackward(ChunkHandle& gradient) {
    SLUICE_RETURN_IF_ERROR(state_.Enter(Phase::kAttention));
    const std::vector<int64_t>& chunks = state_.active;
    Fetches inputs(&state_.inputs(), std::ssize(chunks), "dX",
                   [&](int64_t k, Fetch& fetch) {
                     fetch.Whole(gradient.chunk(chunks[k]));
                     return true;
                   });
    for (const int64_t m : chunks) {
      SLUICE_ASSIGN_OR_RETURN(Slot * slot, inputs.Next());
      const at::Tensor dx =
          slot->Take({shape_.local(m), shape_.hidden}, state_.dtype);
      {
        const auto segment = state_.Segment(kEmbedBackward, m);
        const at::Tensor dx32 = dx.to(at::kFloat);
        gradients_.embed.index_add_(0, Local(tokens_, m), dx32);
        if (gradients_.positions.defined()) {
          Positions(gradients_.positions, m).add_(dx32);
        }
      }
      inputs.Done();
    }
    return absl::OkStatus();
  }

  // Writes dX to `dx`, which may be x.
  void LossOf(const at::Tensor& x, const at::Tensor& labels,
              const at::Tensor& dx) {
    const NormWeights norm =
        state_.Norm(weights_.final_norm_weight, weights_.final_norm_bias);
    at::Tensor& head_gradient =
        gradients_.head.defined() ? gradients_.head : gradients_.embed;
    const at::Tensor d_normed = LossForwardBackward(
        NormForward(x, norm), labels, weights_.logits_weight(), scale_,
        shape_.loss.rows, loss_sum_, head_gradient);
    NormBackward(x, d_normed, /*residual=*/{}, norm,
                 {gradients_.final_norm_weight, gradients_.final_norm_bias},
                 dx);
  }

  // These return this rank's rows of a chunk, or of a group of the loss.
  at::Tensor Local(const at::Tensor& per_token, int64_t m) const {
    return per_token.narrow(0, shape_.layout.local_rows_before(m, shape_.rank),
                            shape_.local(m));
  }
  at::Tensor LabelsOf(const stream::LossGroup& group) const {
    return labels_.narrow(
        0, shape_.layout.local_rows_before(group.first, shape_.rank),
        shape_.loss_rows(group));
  }
  at::Tensor Positions(const at::Tensor& table, int64_t m) const {
    return table.narrow(
        0, shape_.layout.begin(m) + shape_.layout.local_offset(m, shape_.rank),
        shape_.local(m));
  }

  StreamState& state_;
  const stream::StreamShape& shape_;
  const ModelTensors& weights_;
  ModelTensors& gradients_;
  const at::Tensor& tokens_;
  const at::Tensor& labels_;
  PendingWeights up_to_date_;
  PendingWeights& pending_;
  const double scale_;
  at::Tensor loss_sum_;
  std::vector<std::unique_ptr<ChunkHandle>> inputs_;  // by layer
};

absl::Status CheckTokens(const char* what, const at::Tensor& t,
                         int64_t expected, at::Device device) {
  SLUICE_RETURN_IF_ERROR(CheckOn(what, t, device));
  if (t.dim() == 1 && t.size(0) == expected && t.scalar_type() == at::kLong) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{} must be {} int64 numbers, one for each of this rank's "
                  "rows, not {} of "
                  "{}",
                  what, expected, t.numel(), c10::toString(t.scalar_type())));
}

}  // namespace

absl::StatusOr<StepResult> StreamedStep(StreamContext& context,
                                        const ModelTensors& weights,
                                        ModelTensors& gradients,
                                        const at::Tensor& tokens,
                                        const at::Tensor& labels,
                                        int64_t global_count) {
  StreamState& state = StreamState::Of(context);
  const at::NoGradGuard no_grad;
  const int64_t rows = state.shape.layout.total_local_rows(state.shape.rank);
  const at::Device device = state.options.device;
  SLUICE_RETURN_IF_ERROR(CheckOn("weights", weights.embed, device));
  SLUICE_RETURN_IF_ERROR(CheckOn("gradients", gradients.embed, device));
  SLUICE_RETURN_IF_ERROR(CheckTokens("tokens", tokens, rows, device));
  SLUICE_RETURN_IF_ERROR(CheckTokens("labels", labels, rows, device));
  return CatchStatus("a streamed step", [&] {
    return Step(state, weights, gradients, tokens, labels, global_count).Run();
  });
}

}  // namespace sluice::runtime
