// Our tensors under Hugging Face's names and layouts: Llama's with linear
// weights [out, in]; GPT-2's with q, k and v side by side (c_attn) and every
// linear weight transposed ([in, out], Conv1D).
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/train/optimizer/flat_model.h"

namespace sluice::train {

// One tensor of the file; its flat entries are joined along their outputs.
struct HfTensor {
  std::string name;
  std::vector<FlatEntry> parts;
  bool transposed = false;
  std::vector<int64_t> shape() const;
};

std::vector<HfTensor> HfTensors(const stream::ModelShape& config);

// Returns the text of config.json. `bf16`: of the weights.
std::string HfConfig(const stream::ModelShape& config, int64_t seq_len,
                     bool bf16);

}  // namespace sluice::train
