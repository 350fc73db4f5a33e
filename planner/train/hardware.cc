#include "planner/train/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#define TOML_EXCEPTIONS 0
// toml++ 3.3 asserts on "[[[x" one line before it reports the error.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::planner::train {
namespace {

// A number of a profile. kKeys has the order of the file.
struct HardwareKey {
  const char* table;
  const char* name;
  double Hardware::*value;
  bool fraction = false;  // at most 1
  bool optional = false;  // may be absent, and then has a default
};
constexpr HardwareKey kKeys[] = {
    {"gpu", "peak_flops", &Hardware::peak_flops},
    {"gpu", "memory_bytes", &Hardware::memory_bytes},
    {"gpu", "memory_bytes_per_s", &Hardware::memory_bytes_per_s},
    {"kernels", "matmul", &Hardware::matmul_efficiency, true},
    {"kernels", "attention_forward", &Hardware::attention_forward_efficiency,
     true},
    {"kernels", "attention_backward", &Hardware::attention_backward_efficiency,
     true},
    {"kernels", "matmul_fp32", &Hardware::matmul_fp32_efficiency, true, true},
    {"kernels", "attention_forward_64", &Hardware::narrow_forward_efficiency,
     true, true},
    {"kernels", "attention_backward_64", &Hardware::narrow_backward_efficiency,
     true, true},
    {"kernels", "torch_attention", &Hardware::torch_attention, true, true},
    {"node", "host_memory_bytes", &Hardware::host_memory_bytes},
    {"links", "host_bytes_per_s", &Hardware::host_link_bytes_per_s},
    {"links", "gpu_bytes_per_s", &Hardware::gpu_link_bytes_per_s},
    {"links", "network_bytes_per_s", &Hardware::network_bytes_per_s},
    {"links", "ring_bytes_per_s", &Hardware::ring_bytes_per_s, false, true},
    {"allocator", "reorganisation_s_per_byte",
     &Hardware::reorganisation_s_per_byte, false, true},
};

constexpr std::string_view kHeadDim = "attention_head_dim";  // in table kernels
constexpr int64_t kMostHeadDim = 1024;

constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"a100-80g", "dgx-a100"}, {"a100-40g", "dgx-a100-40g"}};

absl::Status Fault(std::string_view source, std::string what) {
  return absl::InvalidArgumentError(
      PrintableLine(fmt::format("{}: {}", source, what)));
}

const HardwareKey* Find(std::string_view table, std::string_view name) {
  for (const HardwareKey& key : kKeys) {
    if (table == key.table && name == key.name) return &key;
  }
  return nullptr;
}

absl::Status CheckKeys(const toml::table& root, std::string_view source) {
  for (const auto& [name, node] : root) {
    const std::string_view table = name.str();
    if (table == "name" || table == "note") continue;
    const toml::table* inside = node.as_table();
    if (inside == nullptr) {
      return Fault(source, fmt::format("unknown key '{}'", table));
    }
    for (const auto& [key, value] : *inside) {
      const bool whole = (table == "node" && key.str() == "gpus") ||
                         (table == "kernels" && key.str() == kHeadDim);
      if (!whole && Find(table, key.str()) == nullptr) {
        return Fault(source, fmt::format("unknown key '{}.{}'", table,
                                         std::string_view(key.str())));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadNumber(const toml::table& root, const HardwareKey& key,
                        std::string_view source, Hardware& hardware) {
  if (key.optional && !root[key.table][key.name]) return absl::OkStatus();
  const auto value = root[key.table][key.name].value<double>();
  if (!value) {
    return Fault(source, fmt::format("'{}.{}' is missing or no number",
                                     key.table, key.name));
  }
  const double most = key.fraction ? 1.0 : 1e18;
  if (!(*value > 0 && *value <= most)) {
    return Fault(source,
                 fmt::format("'{}.{}' is {}; it must be above 0 and at most "
                             "{}",
                             key.table, key.name, *value, most));
  }
  hardware.*key.value = *value;
  return absl::OkStatus();
}

// Reads attention_head_dim; checks and completes [kernels]' optional keys.
absl::Status FinishKernels(const toml::table& root, std::string_view source,
                           Hardware& hardware) {
  if (const auto node = root["kernels"][kHeadDim]) {
    const int64_t dim = node.value<int64_t>().value_or(0);
    if (dim < 1 || dim > kMostHeadDim) {
      return Fault(source, fmt::format("'kernels.{}' is {}; it must be a whole "
                                       "number of 1 to {}",
                                       kHeadDim, dim, kMostHeadDim));
    }
    hardware.attention_head_dim = dim;
  }
  if ((hardware.narrow_forward_efficiency > 0) !=
      (hardware.narrow_backward_efficiency > 0)) {
    return Fault(source,
                 "'kernels.attention_forward_64' and 'attention_backward_64' "
                 "go together: give both or neither");
  }
  if (hardware.matmul_fp32_efficiency == 0) {
    hardware.matmul_fp32_efficiency = hardware.matmul_efficiency / 2;
  }
  return absl::OkStatus();
}

absl::StatusOr<Hardware> FromTable(const toml::table& root,
                                   std::string_view source) {
  SLUICE_RETURN_IF_ERROR(CheckKeys(root, source));
  Hardware hardware;
  hardware.name = PrintableLine(root["name"].value_or(std::string(source)));
  hardware.note = PrintableLine(root["note"].value_or(std::string()));
  hardware.gpus_per_node = root["node"]["gpus"].value_or(int64_t{0});
  if (hardware.gpus_per_node < 1 || hardware.gpus_per_node > 1024) {
    return Fault(source, fmt::format("'node.gpus' is {}; it must be 1 to 1024",
                                     hardware.gpus_per_node));
  }
  for (const HardwareKey& key : kKeys) {
    SLUICE_RETURN_IF_ERROR(ReadNumber(root, key, source, hardware));
  }
  SLUICE_RETURN_IF_ERROR(FinishKernels(root, source, hardware));
  if (hardware.ring_bytes_per_s == 0) {
    hardware.ring_bytes_per_s =
        hardware.network_bytes_per_s * double(hardware.gpus_per_node);
  }
  return hardware;
}

}  // namespace

bool Hardware::OtherHeads(int64_t head_dim) const {
  const int64_t measured = narrow(head_dim) ? kNarrowHead : attention_head_dim;
  return measured > 0 && (measured <= kNarrowHead) != (head_dim <= kNarrowHead);
}

absl::StatusOr<Hardware> ReadHardware(std::string_view toml,
                                      std::string_view source) {
  const toml::parse_result parsed = toml::parse(toml, source);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Fault(source, fmt::format("line {}: {}", error.source().begin.line,
                                     error.description()));
  }
  return FromTable(parsed.table(), source);
}

std::string WriteHardware(
    const Hardware& hardware,
    absl::FunctionRef<std::string(std::string_view key)> remark) {
  std::string text = fmt::format("name = \"{}\"\nnote = \"{}\"\n",
                                 hardware.name, hardware.note);
  std::string_view table;
  const auto add = [&](std::string_view name, auto value) {
    text += fmt::format("{} = {}  # {}\n", name, value,
                        remark(fmt::format("{}.{}", table, name)));
  };
  for (const HardwareKey& key : kKeys) {
    const double value = hardware.*key.value;
    if (key.optional && value == Hardware().*key.value) continue;
    if (key.table != table) {
      table = key.table;
      text += fmt::format("\n[{}]\n", table);
      if (table == "node") add("gpus", hardware.gpus_per_node);
      if (table == "kernels" && hardware.attention_head_dim > 0) {
        add(kHeadDim, hardware.attention_head_dim);
      }
    }
    add(key.name, value);
  }
  return text;
}

absl::StatusOr<Hardware> FindHardware(std::string_view name) {
  std::string_view meant = name;
  for (const auto& [other, profile] : kOtherNames) {
    if (name == other) meant = profile;
  }
  for (const ShippedFile& file : ShippedHardware()) {
    if (file.name == meant) return ReadHardware(file.text, file.name);
  }
  return absl::NotFoundError(
      fmt::format("no hardware '{}'; there are {}, or give a TOML file", name,
                  fmt::join(HardwareNames(), " ")));
}

std::vector<std::string> HardwareNames() {
  std::vector<std::string> names;
  for (const ShippedFile& file : ShippedHardware()) {
    names.emplace_back(file.name);
  }
  return names;
}

}  // namespace sluice::planner::train
