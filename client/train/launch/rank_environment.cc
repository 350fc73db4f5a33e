#include "client/train/launch/rank_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/train/launch/outcome.h"
#include "client/train/watch/rank_page.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr long kMostRanks = 1 << 20;

// Parses the number at `at` and moves `at` behind it; -1 if there is none.
long TakeNumber(const char*& at) {
  char* end = nullptr;
  const long value = std::strtol(at, &end, 10);
  const bool digits = end != at && *at >= '0' && *at <= '9';
  at = end;
  return digits ? std::min(value, long{1} << 30) : -1;
}

struct NumberVariable {
  const char* name;
  int& out;
  std::optional<int> otherwise = {};  // if the variable is not set
};

absl::Status ReadNumbers(const Variables& variables,
                         std::initializer_list<NumberVariable> numbers) {
  for (const NumberVariable& n : numbers) {
    const auto text = variables(n.name);
    if (!text.has_value() && n.otherwise.has_value()) {
      n.out = *n.otherwise;
      continue;
    }
    const char* at = text.has_value() ? text->c_str() : "";
    const long value = TakeNumber(at);
    if (value < 0 || *at != '\0') {
      return BadInput("{}={}: must be a number in a rank's environment", n.name,
                      text.value_or("(unset)"));
    }
    n.out = static_cast<int>(value);
  }
  return absl::OkStatus();
}

bool StartedBySrun(const Variables& variables) {
  const auto tasks = variables("SLURM_STEP_NUM_TASKS");
  return !variables("RANK").has_value() && tasks.has_value() &&
         variables("SLURM_PROCID").has_value() && std::atol(tasks->c_str()) > 1;
}

// Slurm's list "2(x3),1" means three nodes of 2 tasks and one of 1 task.
absl::StatusOr<int> TasksOnNode(const std::string& text, int node) {
  const char* at = text.c_str();
  long nodes = 0;
  while (true) {
    const long tasks = TakeNumber(at);
    long times = 1;
    if (std::string_view(at).starts_with("(x")) {
      at += 2;
      times = TakeNumber(at);
      if (*at++ != ')') break;
    }
    if (tasks < 1 || tasks > kMostRanks || times < 1) break;
    nodes += times;
    if (node < nodes) return static_cast<int>(tasks);
    if (*at++ != ',') break;
  }
  return BadInput("SLURM_STEP_TASKS_PER_NODE={}: says nothing of node {}", text,
                  node);
}

absl::Status ReadSlurm(const Variables& variables, RankEnvironment& e) {
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (variables(name).has_value()) continue;
    return BadInput(
        "srun started {} tasks, and {} is not set: before srun, export "
        "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head "
        "-n1) MASTER_PORT=29500; or start one task with --ranks",
        variables("SLURM_STEP_NUM_TASKS").value_or(""), name);
  }
  SLUICE_RETURN_IF_ERROR(
      ReadNumbers(variables, {{"SLURM_PROCID", e.rank},
                              {"SLURM_STEP_NUM_TASKS", e.world_size},
                              {"SLURM_LOCALID", e.local_rank},
                              {"SLURM_NODEID", e.node}}));
  SLUICE_ASSIGN_OR_RETURN(
      e.local_world_size,
      TasksOnNode(variables("SLURM_STEP_TASKS_PER_NODE").value_or("(unset)"),
                  e.node));
  return absl::OkStatus();
}

absl::Status ReadTorchrun(const Variables& variables, RankEnvironment& e) {
  SLUICE_RETURN_IF_ERROR(
      ReadNumbers(variables, {{"RANK", e.rank}, {"WORLD_SIZE", e.world_size}}));
  const bool local = e.master_addr == "localhost" || e.master_addr == "::1" ||
                     e.master_addr.starts_with("127.");
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (local || variables(name).has_value()) continue;
    return BadInput(
        "{} is not set, and MASTER_ADDR={} is another node: which GPU is this "
        "rank's, and who shares it? Set it, as torchrun does",
        name, e.master_addr);
  }
  SLUICE_RETURN_IF_ERROR(ReadNumbers(
      variables, {{"LOCAL_RANK", e.local_rank, e.rank},
                  {"LOCAL_WORLD_SIZE", e.local_world_size, e.world_size}}));
  // torchrun and our launcher number the ranks of a node consecutively.
  e.node = e.rank - e.local_rank;
  return absl::OkStatus();
}

absl::Status CheckPlace(const RankEnvironment& e) {
  if (e.world_size >= 1 && e.world_size <= kMostRanks &&
      e.rank < e.world_size && e.local_rank < e.local_world_size &&
      e.local_world_size <= e.world_size) {
    return absl::OkStatus();
  }
  return BadInput(
      "rank {} of {}, on its node {} of {}: ranks count from 0, and a node has "
      "no more than all",
      e.rank, e.world_size, e.local_rank, e.local_world_size);
}

// Formats "GPU 0 only", "GPUs 0 to 3", "GPUs 1, 3".
std::string Words(const std::vector<client::GpuState>& gpus) {
  const uint64_t last = gpus.back().index.value();
  if (gpus.size() == 1) return fmt::format("GPU {} only", last);
  if (last == gpus.size() - 1) return fmt::format("GPUs 0 to {}", last);
  return "GPUs " + absl::StrJoin(gpus, ", ", [](std::string* out, auto& gpu) {
           absl::StrAppend(out, gpu.index.value());
         });
}

}  // namespace

std::optional<std::string> OfProcess(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
}

bool IsRank(const Variables& variables) {
  return variables("RANK").has_value() || StartedBySrun(variables);
}

absl::StatusOr<RankEnvironment> ReadRankEnvironment(
    const Variables& variables) {
  RankEnvironment e;
  e.master_addr = variables("MASTER_ADDR").value_or(e.master_addr);
  SLUICE_RETURN_IF_ERROR(StartedBySrun(variables) ? ReadSlurm(variables, e)
                                                  : ReadTorchrun(variables, e));
  SLUICE_RETURN_IF_ERROR(CheckPlace(e));
  SLUICE_RETURN_IF_ERROR(
      ReadNumbers(variables, {{"MASTER_PORT", e.master_port, 29500},
                              {"SLUICE_LAUNCHER_PID", e.launcher_pid, 0}}));
  if (e.rank == 0) {
    SLUICE_RETURN_IF_ERROR(
        ReadNumbers(variables, {{"SLUICE_MASTER_FD", e.master_listen_fd, -1}}));
  }
  e.result_file = variables("SLUICE_RESULT_FILE").value_or("");
  if (variables("SLUICE_GPU").has_value()) {
    GpuPlace& place = e.gpu.emplace();
    SLUICE_RETURN_IF_ERROR(
        ReadNumbers(variables, {{"SLUICE_GPU", place.gpu},
                                {"SLUICE_GPU_RANKS", place.ranks, 1},
                                {"SLUICE_NUMA_RANKS", place.numa_ranks, 1}}));
  }
  e.page_file = variables("SLUICE_PAGE_FILE").value_or("");
  return e;
}

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
      return BadInput("--gpu {}: the node has {}", gpu, Words(gpus));
    }
    order.push_back(*found);
  }
  if (static_cast<int64_t>(named.size()) > local_ranks) {
    return BadInput("--gpu names {} GPUs for {}: name one, or one per rank",
                    named.size(), Counted(local_ranks, "rank"));
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
    places[r].gpu = static_cast<int>(of_rank(r).index.value());
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
      return BadInput(
          "--gpu '{}': name a GPU of the node, or one per rank: 1 or 0,2",
          text);
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
  // Without a driver the GPUs are simulated, or a rank reports the error.
  if (!driver.ok()) return gpus;
  SLUICE_ASSIGN_OR_RETURN(const auto seen, (*driver)->Devices());
  auto visible = gpus;
  std::erase_if(visible, [&](const client::GpuState& gpu) {
    return std::ranges::find(seen, gpu.uuid, &device::DeviceInfo::uuid) ==
           seen.end();
  });
  return visible.empty() ? gpus : visible;
}

}  // namespace sluice::train
