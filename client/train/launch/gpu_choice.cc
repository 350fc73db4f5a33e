#include "client/train/launch/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/train/launch/outcome.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// Formats "GPU 0 only", "GPUs 0 to 3", "GPUs 1, 3".
std::string Words(const std::vector<client::GpuState>& gpus) {
  const std::string list = absl::StrJoin(
      gpus, ", ", [](std::string* out, const client::GpuState& gpu) {
        out->append(std::to_string(gpu.index.value()));
      });
  const auto count = gpus.size();
  if (count == 1) return fmt::format("GPU {} only", list);
  if (gpus.back().index.value() == count - 1) {
    return fmt::format("GPUs 0 to {}", count - 1);
  }
  return fmt::format("GPUs {}", list);
}

}  // namespace

absl::StatusOr<std::vector<GpuPlace>> ChooseGpus(
    const std::vector<client::GpuState>& gpus,
    const std::vector<int64_t>& named, int local_ranks, bool spread) {
  if (gpus.empty()) return absl::NotFoundError("the daemon's node has no GPU");
  std::vector<client::GpuState> order;
  for (const int64_t gpu : named) {
    const auto found =
        std::ranges::find(gpus, DeviceIndex(static_cast<uint64_t>(gpu)),
                          &client::GpuState::index);
    if (found == gpus.end()) {
      return BadInput(
          fmt::format("--gpu {}: the node has {}", gpu, Words(gpus)));
    }
    order.push_back(*found);
  }
  if (static_cast<int64_t>(named.size()) > local_ranks) {
    return BadInput(fmt::format(
        "--gpu names {} GPUs for {} rank{}: name one, or one per rank",
        named.size(), local_ranks, local_ranks == 1 ? "" : "s"));
  }
  if (order.empty()) {
    order = gpus;
    if (spread && local_ranks < static_cast<int64_t>(gpus.size())) {
      std::ranges::stable_sort(order, std::greater(),
                               &client::GpuState::available);
    }
  }
  const auto of_rank = [&](int rank) -> const client::GpuState& {
    return order[rank % order.size()];
  };
  std::vector<GpuPlace> places(local_ranks, {.ranks = 0, .numa_ranks = 0});
  for (int r = 0; r < local_ranks; ++r) {
    places[r].gpu = static_cast<int64_t>(of_rank(r).index.value());
    for (int other = 0; other < local_ranks; ++other) {
      places[r].ranks += of_rank(other).index == of_rank(r).index;
      places[r].numa_ranks += of_rank(other).numa == of_rank(r).numa;
    }
  }
  return places;
}

absl::StatusOr<std::vector<int64_t>> ParseGpuList(const std::string& text) {
  std::vector<int64_t> gpus;
  if (text.empty()) return gpus;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const char* const end = part.data() + part.size();
    int64_t gpu = -1;
    const auto [at, error] = std::from_chars(part.data(), end, gpu);
    if (error != std::errc() || at != end || gpu < 0) {
      return BadInput(fmt::format(
          "--gpu '{}': name a GPU of the node, or one per rank: 1 or 0,2",
          text));
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

absl::StatusOr<std::vector<client::GpuState>> ListVisibleGpus(
    const std::string& socket) {
  SLUICE_ASSIGN_OR_RETURN(auto gpus, client::ListGpus(socket));
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) return gpus;
  const auto driver = device::OpenCudaDriver();
  // The GPUs are simulated, or a rank reports the error.
  if (!driver.ok()) return gpus;
  SLUICE_ASSIGN_OR_RETURN(const auto seen, (*driver)->Devices());
  const auto is_here = [&](const std::string& uuid) {
    return std::ranges::any_of(seen, [&](const device::DeviceInfo& info) {
      return info.uuid == uuid;
    });
  };
  if (std::ranges::any_of(gpus,
                          [&](const auto& g) { return is_here(g.uuid); })) {
    std::erase_if(gpus, [&](const auto& g) { return !is_here(g.uuid); });
  }
  return gpus;
}

}  // namespace sluice::train
