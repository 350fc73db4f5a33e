// What the cost model knows of a machine: a hardware profile, a TOML file.
//
// Everything in it is what a training step really gets (measured, or nominal
// times a named factor in the file's comments), not what a data sheet says;
// the peak alone is the data sheet's, because MFU is defined by it.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace sluice::planner::train {

// GPUs' attention is slower over narrow heads: for as many FLOPs it has twice
// the softmax (an H100 by cuDNN, though of other shapes: 481 TFLOP/s forward at
// 64, 741 at 128).
inline constexpr int64_t kNarrowHead = 64;

struct Hardware {
  std::string name;
  std::string note;  // e.g. that it was measured on a simulated node

  // A GPU: dense bf16 peak, memory the allocator can see, its bandwidth.
  double peak_flops = 0;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;

  // Fractions of the peak that kernels reach at long sequences: large matmul,
  // flash attention forward and backward (FLOPs as executed: backward has five
  // matmuls to forward's two, masked blocks skipped).
  double matmul_efficiency = 0;
  double attention_forward_efficiency = 0;
  double attention_backward_efficiency = 0;
  // Matmuls of fp32 tensors, which a GPU rounds to TF32: no method has any.
  // Where a profile does not tell it is half of matmul_efficiency, as TF32's
  // peak is half of bf16's in NVIDIA's data sheets from A100 on.
  double matmul_fp32_efficiency = 0;
  // Attention over heads of at most kNarrowHead; 0: not told, and the two above
  // are taken.
  double narrow_forward_efficiency = 0;
  double narrow_backward_efficiency = 0;
  // What torch's own flash attention reaches of those, as method ring runs it.
  double torch_attention = 1;
  // The heads that attention_*_efficiency are of; 0: not told, and they are
  // taken to be of 128, as nearly all models have.
  int64_t attention_head_dim = 0;

  // A node.
  int64_t gpus_per_node = 0;
  double host_memory_bytes = 0;

  // Bytes a second and GPU, one direction, while all GPUs of the node do the
  // same: to host memory, to GPUs of the node, to other nodes.
  double host_link_bytes_per_s = 0;
  double gpu_link_bytes_per_s = 0;
  double network_bytes_per_s = 0;
  // What one gather or scatter over whole nodes gets, which goes through all
  // network cards of a node. Where a profile does not tell it is what its GPUs
  // get together.
  double ring_bytes_per_s = 0;

  // What a caching allocator that reorganises costs, a byte of the tensors
  // that pass through it. Only machines where that was measured have it; else
  // it is 0 and nothing is charged.
  double reorganisation_s_per_byte = 0;

  // The efficiency for heads of `head_dim` dimensions.
  double AttentionForward(int64_t head_dim) const {
    return narrow(head_dim) ? narrow_forward_efficiency
                            : attention_forward_efficiency;
  }
  double AttentionBackward(int64_t head_dim) const {
    return narrow(head_dim) ? narrow_backward_efficiency
                            : attention_backward_efficiency;
  }
  // Whether the profile has no attention efficiency for heads of `head_dim`.
  bool OtherHeads(int64_t head_dim) const;

  bool operator==(const Hardware&) const = default;

 private:
  bool narrow(int64_t head_dim) const {
    return head_dim <= kNarrowHead && narrow_forward_efficiency > 0;
  }
};

// Reads a profile; unknown and missing keys are faults. `source` names the
// text in messages.
absl::StatusOr<Hardware> ReadHardware(std::string_view toml,
                                      std::string_view source);

// A profile that ReadHardware reads as `hardware`; behind each value stands
// what `remark` says of its key ("gpu.memory_bytes").
std::string WriteHardware(
    const Hardware& hardware,
    absl::FunctionRef<std::string(std::string_view key)> remark);

// A shipped profile; NotFound lists the names. "a100-80g" and "a100-40g" are
// read as DGX A100s: the names belonged to FPDT's cluster once.
absl::StatusOr<Hardware> FindHardware(std::string_view name);
std::vector<std::string> HardwareNames();

}  // namespace sluice::planner::train
