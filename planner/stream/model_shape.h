// A decoder-only transformer as independent traits, without architecture names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace sluice::stream {

// The kind of all norms: before attention, before the FFN, and at the end.
enum class NormKind { kLayerNorm, kRmsNorm };

// Rotary positions (rotate-half): the pair (i, i + d/2) of the first d
// dimensions of a head is rotated by position * theta^(-2i/d).
struct Rope {
  double theta = 10000;
  double scaling = 1;  // positions are divided by it (linear scaling)
  double partial = 1;  // fraction of a head's dimensions that is rotated
  bool operator==(const Rope&) const = default;
};

struct Biases {
  bool norms = false;  // of LayerNorms
  bool q = false, k = false, v = false, o = false;
  bool ffn = false;  // up, gate and down
  bool operator==(const Biases&) const = default;
  static constexpr Biases All() { return {true, true, true, true, true, true}; }
};

// All widths are in elements. The defaults are Llama's traits at the demo's
// size.
struct ModelShape {
  std::string name;
  int64_t layers = 4;
  int64_t hidden = 128;
  int64_t heads = 2;
  int64_t kv_heads = 2;
  std::optional<int64_t> head_size;  // default: hidden / heads
  int64_t ffn = 344;  // width of one FFN; of one expert, if there are several
  int64_t vocab = 256;
  bool gated = true;  // SwiGLU: a third FFN matrix; else GELU (tanh)
  bool tied = false;  // the head shares the embedding's weights
  NormKind norm = NormKind::kRmsNorm;
  double norm_epsilon = 1e-5;
  std::optional<Rope> rope = Rope{};
  int64_t max_positions = 0;  // rows of the learned position table, or 0
  Biases biases;
  bool query_key_norm = false;     // norms of each head, before RoPE (Qwen 3)
  bool parallel_residual = false;  // attention and FFN read one input (NeoX)
  // Mixture of experts: FFNs per layer, and those that a token uses. Both are 0
  // for one FFN without a router.
  int64_t experts = 0;
  int64_t active_experts = 0;
  double init_std = 0.02;

  // Limit of any width. A double holds the product of two such widths exactly.
  static constexpr int64_t kMost = int64_t{1} << 24;

  int64_t head_dim() const {
    return head_size.value_or(heads > 0 ? hidden / heads : 0);
  }
  int64_t query_width() const { return heads * head_dim(); }
  int64_t key_width() const { return kv_heads * head_dim(); }

  // Returns the number of all trained parameters, including norms and biases.
  int64_t trained_parameters() const;
  int64_t layer_parameters() const;  // the part in one layer

  // --- As MEMO and its MFU count (section 5.2), without norms and biases
  // --- (< 0.1 %): P = 12 n h^2 + V h for GPT.
  // Returns the width of the FFN, or of all experts that one token uses.
  double active_ffn() const {
    return double(experts > 0 ? active_experts * ffn : ffn);
  }
  // Returns the width of the outputs of the FFN's first matrix products.
  double ffn_width() const { return (gated ? 2.0 : 1.0) * active_ffn(); }
  // Return the weights of a layer's matrix products, of the FFN's down
  // projection, and of the head.
  double layer_weights() const;
  double down_weights() const { return active_ffn() * double(hidden); }
  double head_weights() const { return double(vocab) * double(hidden); }
  // Return the FFN weights of all experts of a layer, all of a layer's weights,
  // and all of the model's.
  double expert_weights() const {
    return double(experts) * double(hidden * ffn) * (gated ? 3.0 : 2.0);
  }
  double stored_layer_weights() const;
  double parameters() const;
  // Return the elements per token that one layer's backward needs from its
  // forward (MEMO section 3.1: 16 h in a GPT block), and the part of them that
  // is neither the layer's input nor the attention output.
  double skeletal_elements() const;
  double skeletal_others() const;

  // Returns InvalidArgument with the wrong field, its value and its limit.
  absl::Status Validate() const;
  // Checks that the streamed C++ layer runs this model on this number of ranks.
  // Refuses unsupported traits by name, and heads that kv_heads do not divide
  // (ATen's CPU attention silently accepts 4 heads with 3 kv_heads).
  absl::Status ValidateStream(int64_t ranks) const;
  // Checks heads % ranks = 0, which methods without streaming require.
  absl::Status ValidateWholeHeads(int64_t ranks) const;
};

// Gpt returns `sizes` with GPT-2's traits (LayerNorm, GELU, biases everywhere,
// learned positions, tied head), Llama with Llama's (RMSNorm, SwiGLU, RoPE, no
// biases).
ModelShape Gpt(ModelShape sizes);
ModelShape Llama(ModelShape sizes);

}  // namespace sluice::stream
