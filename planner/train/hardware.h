// The cost model's description of a machine, read from a TOML profile. All
// values are what a training step really gets: measured, or nominal values
// times a factor named in the file's comments. Only the peak is the data
// sheet's, because MFU is defined by it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace sluice::planner::train {

// Attention over heads of at most this dimension is slower, because it computes
// twice as many softmax values per FLOP as over heads of 128.
inline constexpr int64_t kNarrowHead = 64;

struct Hardware {
  std::string name;
  std::string note;  // for example that the node was simulated

  // A GPU's dense bf16 peak, allocatable memory, and memory bandwidth.
  double peak_flops = 0;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;

  // Fractions of the peak that kernels reach at long sequences: large matmuls,
  // and flash attention forward and backward. FLOPs are counted as executed:
  // backward has five matmuls for forward's two, and masked blocks are skipped.
  double matmul_efficiency = 0;
  double attention_forward_efficiency = 0;
  double attention_backward_efficiency = 0;
  // For matmuls of fp32 tensors, which a GPU rounds to TF32. No method has such
  // matmuls. Default: half of matmul_efficiency, because TF32's peak is half of
  // bf16's in NVIDIA's data sheets from A100 on.
  double matmul_fp32_efficiency = 0;
  // Attention's efficiencies with heads of at most kNarrowHead dimensions. 0 if
  // not known; then attention_*_efficiency are used.
  double narrow_forward_efficiency = 0;
  double narrow_backward_efficiency = 0;
  // Factor on attention's efficiencies for torch's own flash attention, which
  // method ring runs.
  double torch_attention = 1;
  // Head dimension at which attention_*_efficiency was measured; 0: not known.
  int64_t attention_head_dim = 0;

  int64_t gpus_per_node = 0;
  double host_memory_bytes = 0;

  // Bytes per second per GPU in one direction, while all GPUs of the node copy:
  // to host memory, to GPUs of the node, to other nodes.
  double host_link_bytes_per_s = 0;
  double gpu_link_bytes_per_s = 0;
  double network_bytes_per_s = 0;
  // Bytes per second of one gather or scatter over whole nodes, which uses all
  // network cards of a node. Default: the sum over the node's GPUs.
  double ring_bytes_per_s = 0;

  // Seconds that a caching allocator's reorganisation costs per byte of the
  // tensors that pass through it. 0 if not measured; estimates then leave it
  // out.
  double reorganisation_s_per_byte = 0;

  // Return the efficiency of attention over heads of `head_dim` dimensions.
  double AttentionForward(int64_t head_dim) const {
    return narrow(head_dim) ? narrow_forward_efficiency
                            : attention_forward_efficiency;
  }
  double AttentionBackward(int64_t head_dim) const {
    return narrow(head_dim) ? narrow_backward_efficiency
                            : attention_backward_efficiency;
  }
  // Returns whether that efficiency was measured over heads of another width
  // class (at most kNarrowHead, or wider).
  bool OtherHeads(int64_t head_dim) const;

  bool operator==(const Hardware&) const = default;

 private:
  bool narrow(int64_t head_dim) const {
    return head_dim <= kNarrowHead && narrow_forward_efficiency > 0;
  }
};

// Reads a profile. InvalidArgument: no TOML, or an unknown, missing or wrong
// key. `source` names the text in messages.
absl::StatusOr<Hardware> ReadHardware(std::string_view toml,
                                      std::string_view source);

// Returns a TOML text from which ReadHardware reads `hardware`, with
// remark(key) as the comment after the value of a key such as
// "gpu.memory_bytes".
std::string WriteHardware(
    const Hardware& hardware,
    absl::FunctionRef<std::string(std::string_view key)> remark);

// Returns a shipped profile. "a100-80g" and "a100-40g" are aliases of the DGX
// A100 profiles, not of those of FPDT's cluster (fpdt-a100-80g, fpdt-a100-40g).
// NotFound: the message lists the names.
absl::StatusOr<Hardware> FindHardware(std::string_view name);
std::vector<std::string> HardwareNames();

// hardware/*.toml and tables/*.csv, built into the library and sorted by name.
// CMake generates the definitions (shipped.cmake).
struct ShippedFile {
  std::string_view name;  // without folder and extension
  std::string_view text;
};

const std::vector<ShippedFile>& ShippedHardware();
const std::vector<ShippedFile>& ShippedTables();

}  // namespace sluice::planner::train
