#include "deploy/bundle/verify/hardware_file.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>
#include <utility>

#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using planner::train::Hardware;

// A word of the driver's name, and the profile. The first that fits: "H200" is
// in "GH200" too.
constexpr std::pair<std::string_view, std::string_view> kProfiles[] = {
    {"GH200", "gh200"}, {"H200", "h200-141g"}, {"H100", "h100-80g"},
    {"B200", "b200"},   {"A800", "a800-80g"},
};
constexpr double kSmallA100 = 60e9;  // bytes: the one of 40 GB has fewer
constexpr std::string_view kOtherwise = "h100-80g";

// Empty: none is of this GPU.
std::string_view ProfileOf(const MeasuredNode& node) {
  for (const auto& [word, profile] : kProfiles) {
    if (node.gpu_name.find(word) != std::string::npos) return profile;
  }
  if (node.gpu_name.find("A100") == std::string::npos) return "";
  return node.gpu_memory_bytes < kSmallA100 ? "dgx-a100-40g" : "dgx-a100";
}

// Letters and digits; what a name of ours looks like.
std::string Plain(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!plain.empty() && plain.back() != '-') {
      plain += '-';
    }
  }
  return plain.empty() ? "gpu" : plain;
}

std::string Text(const Hardware& hardware, std::string_view base) {
  const auto line = [&](const char* key, double value, bool measured) {
    return fmt::format("{} = {}  # {}\n", key, value,
                       measured ? "measured" : std::string(base));
  };
  std::string text = fmt::format(
      "# Of ./verify. A line says whether its value was measured or is that of "
      "the\n# shipped profile {}.\nname = \"{}\"\nnote = \"{}\"\n",
      base, hardware.name, hardware.note);
  text += "\n[gpu]\n" + line("peak_flops", hardware.peak_flops, false) +
          line("memory_bytes", hardware.memory_bytes, true) +
          line("memory_bytes_per_s", hardware.memory_bytes_per_s, false);
  text +=
      "\n[kernels]\n" + line("matmul", hardware.matmul_efficiency, false) +
      line("attention_forward", hardware.attention_forward_efficiency, false) +
      line("attention_backward", hardware.attention_backward_efficiency, false);
  if (hardware.torch_attention < 1) {
    text += line("torch_attention", hardware.torch_attention, false);
  }
  text += fmt::format("\n[node]\ngpus = {}  # those that nobody used\n",
                      hardware.gpus_per_node) +
          line("host_memory_bytes", hardware.host_memory_bytes, true);
  text += "\n[links]\n" +
          line("host_bytes_per_s", hardware.host_link_bytes_per_s, true) +
          line("gpu_bytes_per_s", hardware.gpu_link_bytes_per_s, false) +
          line("network_bytes_per_s", hardware.network_bytes_per_s, false) +
          line("ring_bytes_per_s", hardware.ring_bytes_per_s, false);
  if (hardware.reorganisation_s_per_byte > 0) {
    text += "\n[allocator]\n" + line("reorganisation_s_per_byte",
                                     hardware.reorganisation_s_per_byte, false);
  }
  return text;
}

}  // namespace

absl::StatusOr<double> PeakFlopsOf(const std::string& gpu_name,
                                   double memory_bytes) {
  const std::string_view own =
      ProfileOf({.gpu_name = gpu_name, .gpu_memory_bytes = memory_bytes});
  if (own.empty()) return 0;
  SLUICE_ASSIGN_OR_RETURN(const Hardware hardware,
                          planner::train::FindHardware(own));
  return hardware.peak_flops;
}

absl::StatusOr<HardwareFile> HardwareFileOf(const MeasuredNode& node) {
  const std::string_view own = ProfileOf(node);
  const std::string_view base = own.empty() ? kOtherwise : own;
  SLUICE_ASSIGN_OR_RETURN(Hardware hardware,
                          planner::train::FindHardware(base));
  hardware.name = "measured-" + Plain(node.gpu_name);
  hardware.note = fmt::format(
      "links and memory measured by ./verify; kernels, peak, links between "
      "GPUs and nodes are those of {}{}",
      base, own.empty() ? ", for no profile is of this GPU" : "");
  hardware.gpus_per_node = node.gpus;
  hardware.memory_bytes = node.gpu_memory_bytes;
  hardware.host_memory_bytes = node.host_memory_bytes;
  hardware.host_link_bytes_per_s = node.host_link_bytes_per_s;
  return HardwareFile{.hardware = hardware, .text = Text(hardware, base)};
}

}  // namespace sluice::verify
