// Traces of transformer training as a framework's allocator sees them: whole
// iterations of 2,300 to 20,500 buffers, and single layers.
//
// Synthetic: requests and their order follow GPT and Llama layers (norm, qkv,
// attention, projection, FFN; tensor and context parallel, grouped heads,
// chunked, with and without swapping); no real run was recorded. Sizes are
// bytes, the alignment is 512 as in PyTorch's caching allocator, and a unit of
// time is a request. The spec and the seed determine everything, on every
// machine (no std:: distributions).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/trace/read_trace.h"

namespace sluice::planner {

struct IterationSpec {
  std::string name;  // "gpt-7b-tp1-cp1-chunks1-mb2"
  int layers = 32;
  int64_t hidden = 4096;
  int64_t ffn = 16384;
  int64_t heads = 32;
  int64_t kv_heads = 32;  // < heads: grouped-query attention
  int64_t vocabulary = 50257;
  int64_t tokens = 4096;  // per micro-batch, before context parallelism
  int tensor_parallel = 1;
  int context_parallel = 1;  // ring attention with its receive buffers
  bool swiglu = false;       // Llama's FFN: up and gate
  bool dropout = false;      // masks kept for backward
  int chunks = 1;            // FPDT: token-local parts and attention in chunks
  int micro_batches = 1;
  // As in MEMO, skeletal tensors are in two rounding buffers that live
  // throughout; tensors that are not swapped are recomputed in backward.
  bool swapped = false;
  // Scales every size by a factor in [1 - jitter, 1 + jitter].
  double jitter = 0;
};

// Returns a whole iteration: embedding, layers, loss, backward, optimizer.
NamedTrace GenerateIteration(const IterationSpec& spec, uint32_t seed);

enum class LayerPass { kForward, kBackward, kBoth };

// Returns the pass of one layer, as MEMO's level 1 sees it: buffers that
// outlive a forward pass live to its end, and buffers that a backward pass
// consumes live from its start.
NamedTrace GenerateLayer(const IterationSpec& spec, LayerPass pass,
                         uint32_t seed);

// Returns the iterations that benchmarks and tests share.
std::vector<IterationSpec> StandardIterations();
// Returns nullptr if no iteration has that name.
const IterationSpec* FindIteration(std::string_view name);

// Returns `count` layers of 25 to 295 buffers. The sizes of every other layer
// are jittered by x0.5 to x1.5.
std::vector<NamedTrace> StandardLayers(int count, uint32_t seed);

// Returns a MiniMalloc CSV (id,lower,upper,size).
std::string ToCsv(const plan::Trace& trace);
// Returns a request log as in MEMO. It has only the order of requests; frees
// come before mallocs of the same time.
std::string ToRequestLog(const plan::Trace& trace);

}  // namespace sluice::planner
