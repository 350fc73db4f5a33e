// What the cost model knows of a model: the shape of its layers.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::planner::train {

// A decoder-only transformer. All widths in elements.
struct ModelShape {
  std::string name;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  bool gated = false;         // SwiGLU: a third FFN matrix
  bool tied = true;           // the head is the embedding
  int64_t max_positions = 0;  // rows of a learned table; 0: none

  // Of any field. Beyond it a product of two would leave what a double counts
  // exactly.
  static constexpr int64_t kMost = int64_t{1} << 24;

  double query_width() const { return double(heads) * double(head_dim); }
  double key_width() const { return double(kv_heads) * double(head_dim); }
  double ffn_width() const { return (gated ? 2.0 : 1.0) * double(ffn); }

  // Weights of a layer's matmuls, of those alone that make the FFN's output
  // (the last matmul, whose output no backward needs), and of the head.
  double layer_weights() const;
  double down_weights() const { return double(ffn) * double(hidden); }
  double head_weights() const { return double(vocab) * double(hidden); }
  // Everything that has a gradient; norms and biases (< 0.1 %) left out, as in
  // MEMO's P = 12 n h^2 + V h.
  double parameters() const;

  // Elements a token that one layer's backward needs of its forward (MEMO
  // section 3.1: 16 h in a GPT block), and those that neither the layer's
  // input nor the attention output are.
  double skeletal_elements() const;
  double skeletal_others() const;

  // InvalidArgument naming the field, its value and what it must be.
  absl::Status Validate() const;
};

// A shipped shape; NotFound lists the names.
absl::StatusOr<ModelShape> FindModel(std::string_view name);
std::vector<std::string> ModelNames();

// A Hugging Face config.json (model_type llama, mistral, qwen2, qwen3, gpt2,
// gpt_neox). `source` names it in messages.
absl::StatusOr<ModelShape> ReadHuggingFaceConfig(std::string_view json,
                                                 std::string_view source);

}  // namespace sluice::planner::train
