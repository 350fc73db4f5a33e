// What a decoder-only transformer is, as traits: one struct for the run, the
// desk and the checkpoints. No architecture has a name here; whether a model
// is gated, where its positions come from or which projections have biases are
// questions of their own.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace sluice::stream {

// The kind of the norms before attention and FFN, and of the last one.
enum class NormKind { kLayerNorm, kRmsNorm };

// Rotary positions (rotate-half): pairs (i, i + d/2) of the first d dimensions
// of a head turn by position * theta^(-2i/d).
struct Rope {
  double theta = 10000;
  double scaling = 1;  // positions are divided by it (linear scaling)
  double partial = 1;  // the part of a head's dimensions that turns
  bool operator==(const Rope&) const = default;
};

// Which projections add a bias.
struct Biases {
  bool norms = false;  // LayerNorm's
  bool q = false, k = false, v = false, o = false;
  bool ffn = false;  // up, gate and down
  bool operator==(const Biases&) const = default;
  static constexpr Biases All() { return {true, true, true, true, true, true}; }
};

// All widths in elements. The defaults are Llama's traits at the size of the
// demo.
struct ModelShape {
  std::string name;
  int64_t layers = 4;
  int64_t hidden = 128;
  int64_t heads = 2;
  int64_t kv_heads = 2;
  std::optional<int64_t> head_size;  // absent: hidden / heads
  int64_t ffn = 344;                 // of one expert, if there are several
  int64_t vocab = 256;
  bool gated = true;  // SwiGLU: a third FFN matrix; else GELU (tanh)
  bool tied = false;  // the head is the embedding
  NormKind norm = NormKind::kRmsNorm;
  double norm_epsilon = 1e-5;
  std::optional<Rope> rope = Rope{};
  int64_t max_positions = 0;  // rows of a learned table; 0: there is none
  Biases biases;
  bool query_key_norm = false;     // of each head, before RoPE (Qwen 3)
  bool parallel_residual = false;  // attention and FFN side by side (NeoX)
  // Mixture of experts: FFNs of a layer, and how many of them a token takes.
  // 0: one FFN, no router.
  int64_t experts = 0;
  int64_t active_experts = 0;
  double init_std = 0.02;

  // The limit of any width, so that a double counts a product of two exactly.
  static constexpr int64_t kMost = int64_t{1} << 24;

  int64_t head_dim() const {
    return head_size.value_or(heads > 0 ? hidden / heads : 0);
  }
  int64_t query_width() const { return heads * head_dim(); }
  int64_t key_width() const { return kv_heads * head_dim(); }

  // Everything that is trained, norms and biases too.
  int64_t trained_parameters() const;
  int64_t layer_parameters() const;  // of those, one layer's

  // --- as MEMO and its MFU count (section 5.2), norms and biases (< 0.1 %)
  // --- left out: P = 12 n h^2 + V h for GPT
  // Of mixtures: what one token passes through.
  double active_ffn() const {
    return double(experts > 0 ? active_experts * ffn : ffn);
  }
  // Outputs of the FFN's first matmuls.
  double ffn_width() const { return (gated ? 2.0 : 1.0) * active_ffn(); }
  // Weights of a layer's matmuls, of the one that makes the FFN's output (no
  // backward needs that output), and of the head.
  double layer_weights() const;
  double down_weights() const { return active_ffn() * double(hidden); }
  double head_weights() const { return double(vocab) * double(hidden); }
  // A layer's FFN weights over all experts, and what a layer stores.
  double expert_weights() const {
    return double(experts) * double(hidden * ffn) * (gated ? 3.0 : 2.0);
  }
  double stored_layer_weights() const;
  double parameters() const;
  // Elements a token that one layer's backward needs of its forward (MEMO
  // section 3.1: 16 h in a GPT block), and those that neither the layer's
  // input nor the attention output are.
  double skeletal_elements() const;
  double skeletal_others() const;

  // InvalidArgument naming the field, its value and what it must be.
  absl::Status Validate() const;
  // Also what the streamed C++ layer runs on any number of ranks (HeadLayout):
  // heads % kv_heads = 0 (ATen's CPU attention silently accepts 4/3). Traits
  // that it does not run are refused by name.
  absl::Status ValidateStream(int64_t ranks) const;
  // Also heads % ranks = 0, as the methods want it that do not stream.
  absl::Status ValidateWholeHeads(int64_t ranks) const;
};

// `sizes` with GPT-2's traits (LayerNorm, GELU, biases everywhere, learned
// positions, tied head), and with Llama's (RMSNorm, SwiGLU, RoPE, no biases).
ModelShape Gpt(ModelShape sizes);
ModelShape Llama(ModelShape sizes);

}  // namespace sluice::stream
