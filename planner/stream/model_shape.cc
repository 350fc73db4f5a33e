#include "planner/stream/model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "proto/base/status.h"

namespace sluice::stream {
namespace {

absl::Status CheckDivides(const char* flag, int64_t value, const char* by_flag,
                          int64_t by, const char* advice) {
  if (value % by == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{} {} does not divide by {} {}: {}", flag, value, by_flag, by, advice));
}

int64_t NormParameters(const ModelShape& m) {
  return m.hidden * (m.biases.norms ? 2 : 1);
}

absl::Status CheckTraits(const ModelShape& m) {
  const std::pair<const char*, bool> missing[] = {
      {"norms of q and k (qk norm)", m.query_key_norm},
      {"a parallel residual", m.parallel_residual},
      {"a mixture of experts", m.experts > 0},
      {"scaled RoPE", m.rope && m.rope->scaling != 1},
      {"partial RoPE", m.rope && m.rope->partial != 1},
      {"a gate with a bias", m.gated && m.biases.ffn},
      {"LayerNorm without a bias",
       m.norm == NormKind::kLayerNorm && !m.biases.norms},
      {"RMSNorm with a bias", m.norm == NormKind::kRmsNorm && m.biases.norms}};
  for (const auto& [trait, has] : missing) {
    if (has) {
      return absl::InvalidArgumentError(fmt::format(
          "the model has {}: the streamed C++ layer does not run that", trait));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPositions(const ModelShape& m) {
  if (m.rope && m.head_dim() % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the head size --hidden/--heads is {}: RoPE turns pairs, "
                    "so it must be even",
                    m.head_dim()));
  }
  const double theta = m.rope ? m.rope->theta : 1;
  if (!(theta > 0) || !(m.norm_epsilon > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("rope_theta is {} and norm_epsilon {}: both must be above "
                    "0",
                    theta, m.norm_epsilon));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ModelShape::trained_parameters() const {
  return (tied ? 1 : 2) * vocab * hidden + max_positions * hidden +
         layers * layer_parameters() + NormParameters(*this);
}

int64_t ModelShape::layer_parameters() const {
  const int64_t q = query_width(), kv = key_width();
  const int64_t matrices =
      hidden * (2 * q + 2 * kv + experts) +
      std::max<int64_t>(experts, 1) * hidden * ffn * (gated ? 3 : 2);
  const Biases& b = biases;
  return matrices + (b.q ? q : 0) + (b.k ? kv : 0) + (b.v ? kv : 0) +
         (b.o ? hidden : 0) + (b.ffn ? ffn * (gated ? 2 : 1) + hidden : 0) +
         2 * NormParameters(*this);
}

double ModelShape::layer_weights() const {
  const double h = double(hidden);
  const double attention =
      h * (2.0 * double(query_width()) + 2.0 * double(key_width()));
  return attention + h * ffn_width() + down_weights() + h * double(experts);
}

double ModelShape::stored_layer_weights() const {
  if (experts == 0) return layer_weights();
  return layer_weights() - double(hidden) * ffn_width() - down_weights() +
         expert_weights();
}

double ModelShape::parameters() const {
  return double(layers) * stored_layer_weights() +
         (tied ? 1.0 : 2.0) * head_weights() +
         double(max_positions) * double(hidden);
}

double ModelShape::skeletal_elements() const {
  return double(hidden) + double(query_width()) + skeletal_others();
}

double ModelShape::skeletal_others() const {
  // Two norms and the residual; q, k, v; up (and gate) and the activation; and
  // for each expert of a token its input and output.
  return 3 * double(hidden) + double(query_width()) + 2 * double(key_width()) +
         ffn_width() + active_ffn() + 2 * double(active_experts * hidden);
}

absl::Status ModelShape::Validate() const {
  const std::pair<const char*, int64_t> fields[] = {
      {"layers", layers},     {"hidden", hidden},       {"heads", heads},
      {"kv_heads", kv_heads}, {"head_dim", head_dim()}, {"ffn", ffn},
      {"vocab", vocab}};
  for (const auto& [field, value] : fields) {
    if (value < 1 || value > kMost) {
      return absl::InvalidArgumentError(fmt::format(
          "model: {} is {}; it must be 1 to {}", field, value, kMost));
    }
  }
  if (experts < 0 || experts > kMost || active_experts > experts ||
      (active_experts < 1) != (experts == 0)) {
    return absl::InvalidArgumentError(fmt::format(
        "model: {} of {} experts are active; it must be 1 to all of them",
        active_experts, experts));
  }
  if (heads % kv_heads != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "model: {} heads do not divide by {} kv_heads", heads, kv_heads));
  }
  if (!head_size && hidden % heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("model: hidden {} does not divide by {} heads: choose a "
                    "multiple, or give head_dim",
                    hidden, heads));
  }
  return absl::OkStatus();
}

absl::Status ModelShape::ValidateStream(int64_t ranks) const {
  const std::tuple<const char*, int64_t, int64_t> minimums[] = {
      {"--layers", layers, 1}, {"--hidden", hidden, 1},
      {"--heads", heads, 1},   {"--kv-heads", kv_heads, 1},
      {"--ffn", ffn, 1},       {"--vocab", vocab, 2},
      {"--ranks", ranks, 1},   {"max_positions", max_positions, rope ? 0 : 1}};
  for (const auto& [flag, value, least] : minimums) {
    if (value >= least) continue;
    return absl::InvalidArgumentError(
        fmt::format("{} is {}: it must be {} or more", flag, value, least));
  }
  if (!head_size) {
    SLUICE_RETURN_IF_ERROR(
        CheckDivides("--hidden", hidden, "--heads", heads,
                     "choose a hidden size that is a multiple of it"));
  }
  SLUICE_RETURN_IF_ERROR(CheckDivides("--heads", heads, "--kv-heads", kv_heads,
                                      "every kv head must serve as many q "
                                      "heads"));
  SLUICE_RETURN_IF_ERROR(CheckPositions(*this));
  return CheckTraits(*this);
}

absl::Status ModelShape::ValidateWholeHeads(int64_t ranks) const {
  return CheckDivides("--heads", heads, "--ranks", ranks,
                      "this method gives each rank whole heads of all rows; "
                      "use a number of ranks that divides the heads, or "
                      "--method sluice");
}

ModelShape Gpt(ModelShape sizes) {
  sizes.gated = false;
  sizes.tied = true;
  sizes.norm = NormKind::kLayerNorm;
  sizes.rope.reset();
  sizes.biases = Biases::All();
  return sizes;
}

ModelShape Llama(ModelShape sizes) {
  sizes.gated = true;
  sizes.tied = false;
  sizes.norm = NormKind::kRmsNorm;
  if (!sizes.rope) sizes.rope = Rope{};
  sizes.biases = Biases{};
  sizes.max_positions = 0;
  return sizes;
}

}  // namespace sluice::stream
