// The cost model's description of a machine: a hardware profile, a TOML file.
//
// All values are what a training step really gets (measured, or nominal times a
// factor named in the file's comments), not data-sheet values. Only the peak is
// the data sheet's, because MFU is defined by it.
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

// GPUs' attention is slower over narrow heads, because it has twice the softmax
// per FLOP (an H100 by cuDNN, though with other shapes: 481 TFLOP/s forward at
// 64, 741 at 128).
inline constexpr int64_t kNarrowHead = 64;

struct Hardware {
  std::string name;
  std::string note;  // e.g. that it was measured on a simulated node

  // A GPU: dense bf16 peak, memory visible to the allocator, its bandwidth.
  double peak_flops = 0;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;

  // Fractions of the peak that kernels reach at long sequences: large matmuls,
  // flash attention forward and backward (FLOPs as executed: backward has five
  // matmuls for forward's two, masked blocks skipped).
  double matmul_efficiency = 0;
  double attention_forward_efficiency = 0;
  double attention_backward_efficiency = 0;
  // Matmuls of fp32 tensors, which a GPU rounds to TF32; no method has any.
  // Default: half of matmul_efficiency, as TF32's peak is half of bf16's in
  // NVIDIA's data sheets from A100 on.
  double matmul_fp32_efficiency = 0;
  // Attention over heads of at most kNarrowHead. 0: not known; the two values
  // above are used.
  double narrow_forward_efficiency = 0;
  double narrow_backward_efficiency = 0;
  // Factor on those for torch's own flash attention, which method ring runs.
  double torch_attention = 1;
  // Head dimension at which attention_*_efficiency were measured. 0: not known;
  // 128 is assumed, as nearly all models have.
  int64_t attention_head_dim = 0;

  // A node.
  int64_t gpus_per_node = 0;
  double host_memory_bytes = 0;

  // Bytes per second per GPU in one direction, while all GPUs of the node do
  // the same: to host memory, to GPUs of the node, to other nodes.
  double host_link_bytes_per_s = 0;
  double gpu_link_bytes_per_s = 0;
  double network_bytes_per_s = 0;
  // Bandwidth of one gather or scatter over whole nodes, which uses all network
  // cards of a node. Default: the sum over the node's GPUs.
  double ring_bytes_per_s = 0;

  // Cost of a caching allocator's reorganisation, per byte of the tensors that
  // pass through it. Set only for machines where it was measured; else 0, and
  // nothing is charged.
  double reorganisation_s_per_byte = 0;

  // Returns the efficiency for heads of `head_dim` dimensions.
  double AttentionForward(int64_t head_dim) const {
    return narrow(head_dim) ? narrow_forward_efficiency
                            : attention_forward_efficiency;
  }
  double AttentionBackward(int64_t head_dim) const {
    return narrow(head_dim) ? narrow_backward_efficiency
                            : attention_backward_efficiency;
  }
  // Returns whether the profile has no attention efficiency for heads of
  // `head_dim`.
  bool OtherHeads(int64_t head_dim) const;

  bool operator==(const Hardware&) const = default;

 private:
  bool narrow(int64_t head_dim) const {
    return head_dim <= kNarrowHead && narrow_forward_efficiency > 0;
  }
};

// Reads a profile. InvalidArgument: unknown or missing keys. `source` names the
// text in messages.
absl::StatusOr<Hardware> ReadHardware(std::string_view toml,
                                      std::string_view source);

// Returns a profile that ReadHardware reads as `hardware`. The result of
// `remark` for a key ("gpu.memory_bytes") is written behind its value.
std::string WriteHardware(
    const Hardware& hardware,
    absl::FunctionRef<std::string(std::string_view key)> remark);

// Returns a shipped profile. NotFound: the message lists the names. "a100-80g"
// and "a100-40g" are aliases of the DGX A100 profiles, not of FPDT's cluster
// (fpdt-a100-80g, fpdt-a100-40g).
absl::StatusOr<Hardware> FindHardware(std::string_view name);
std::vector<std::string> HardwareNames();

}  // namespace sluice::planner::train
