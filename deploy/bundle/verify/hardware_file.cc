#include "deploy/bundle/verify/hardware_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using planner::train::Hardware;

// The first part of the driver's name decides: "H200" is a part of "GH200",
// too.
constexpr std::pair<std::string_view, std::string_view> kProfiles[] = {
    {"GH200", "gh200"}, {"H200", "h200-141g"}, {"H100", "h100-80g"},
    {"B200", "b200"},   {"A800", "a800-80g"},
};
constexpr double kSmallA100 = 60e9;  // bytes: only the A100 of 40 GB has fewer
constexpr std::string_view kOtherwise = "h100-80g";

std::string_view ProfileOf(const MeasuredNode& node) {
  for (const auto& [word, profile] : kProfiles) {
    if (node.gpu_name.find(word) != std::string::npos) return profile;
  }
  if (node.gpu_name.find("A100") == std::string::npos) return "";
  return node.gpu_memory_bytes < kSmallA100 ? "dgx-a100-40g" : "dgx-a100";
}

// In lower-case letters and digits, joined by '-', as profiles are named.
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

constexpr std::string_view kMeasured[] = {
    "gpu.memory_bytes", "node.host_memory_bytes", "links.host_bytes_per_s"};

std::string Text(const Hardware& hardware, std::string_view base) {
  return fmt::format(
             "# Of ./verify. A line says whether its value was measured or is "
             "that of the\n# shipped profile {}.\n",
             base) +
         planner::train::WriteHardware(hardware, [&](std::string_view key) {
           if (key == "node.gpus") return std::string("those that nobody used");
           return std::ranges::find(kMeasured, key) != std::end(kMeasured)
                      ? std::string("measured")
                      : std::string(base);
         });
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
