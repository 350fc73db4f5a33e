#include "client/train/launch/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "client/train/launch/outcome.h"

namespace sluice::train {
namespace {

// Indices, the one with the most free memory first, else in their order.
std::vector<int64_t> ByFreeMemory(const std::vector<client::GpuState>& gpus) {
  std::vector<int64_t> order(gpus.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
    return gpus[a].available() > gpus[b].available();
  });
  return order;
}

}  // namespace

absl::StatusOr<std::vector<GpuPlace>> ChooseGpus(
    const std::vector<client::GpuState>& gpus,
    const std::vector<int64_t>& named, int local_ranks, bool spread) {
  const auto count = static_cast<int64_t>(gpus.size());
  if (count == 0) {
    return absl::NotFoundError("the daemon's node has no GPU");
  }
  for (const int64_t gpu : named) {
    if (gpu < count) continue;
    return BadInput(count == 1
                        ? fmt::format("--gpu {}: the node has GPU 0 only", gpu)
                        : fmt::format("--gpu {}: the node has GPUs 0 to {}",
                                      gpu, count - 1));
  }
  if (static_cast<int64_t>(named.size()) > local_ranks) {
    return BadInput(
        fmt::format("--gpu names {} GPUs for {} rank{}: name one, or one per "
                    "rank",
                    named.size(), local_ranks, local_ranks == 1 ? "" : "s"));
  }
  std::vector<int64_t> order = named;
  if (order.empty() && spread && local_ranks < count) {
    order = ByFreeMemory(gpus);
  }
  if (order.empty()) {
    order.resize(count);
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<GpuPlace> places(local_ranks);
  for (int r = 0; r < local_ranks; ++r) {
    places[r].gpu = order[r % order.size()];
  }
  for (GpuPlace& place : places) {
    place.ranks = std::ranges::count_if(
        places, [&](const GpuPlace& other) { return other.gpu == place.gpu; });
    place.numa_ranks =
        std::ranges::count_if(places, [&](const GpuPlace& other) {
          return gpus[other.gpu].numa == gpus[place.gpu].numa;
        });
  }
  return places;
}

absl::StatusOr<std::vector<int64_t>> ParseGpuList(const std::string& text) {
  std::vector<int64_t> gpus;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t gpu = -1;
    const auto [at, error] =
        std::from_chars(text.data() + begin, text.data() + end, gpu);
    if (error != std::errc() || at != text.data() + end || gpu < 0) {
      return BadInput(fmt::format(
          "--gpu '{}': name a GPU of the node, or one per rank: 1 or 0,2",
          text));
    }
    gpus.push_back(gpu);
    begin = end + 1;
  }
  return gpus;
}

}  // namespace sluice::train
