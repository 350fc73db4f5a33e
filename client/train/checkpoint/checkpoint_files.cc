#include "client/train/checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "client/train/checkpoint/safetensors.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice::train {
namespace fs = std::filesystem;
namespace {

constexpr char kPrefix[] = "checkpoint-";

// Returns the step in a checkpoint folder's name, else a negative number.
int64_t StepOf(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return -1;
  char* end = nullptr;
  const char* digits = name.c_str() + std::strlen(kPrefix);
  const long long step = std::strtoll(digits, &end, 10);
  return *digits != '\0' && *end == '\0' ? step : -1;
}

// InvalidArgument: the folder has checkpoints of more than one run. Those
// without an id (format 1) may belong to any run.
absl::Status CheckOneRun(const std::string& folder,
                         const std::vector<int64_t>& steps) {
  std::map<std::string, int64_t> newest;
  for (const int64_t step : steps) {
    const auto state = ReadState(CheckpointName(folder, step));
    if (!state.ok() || state->identity.run.empty()) continue;
    newest.try_emplace(state->identity.run, step);
  }
  if (newest.size() < 2) return absl::OkStatus();
  std::string list;
  for (const auto& [run, step] : newest) {
    list += fmt::format("{}{}{} is of run {}", list.empty() ? "" : ", ",
                        kPrefix, step, run);
  }
  return BadInput(fmt::format(
      "--resume {}: it holds checkpoints of {} runs ({}): name one of them",
      folder, newest.size(), list));
}

}  // namespace

std::string WeightsFile(const std::string& folder) {
  return folder + "/model.safetensors";
}

std::string OptimizerFile(const std::string& folder, int rank, int ranks) {
  return fmt::format("{}/optimizer-{}-of-{}.safetensors", folder, rank, ranks);
}

std::string PlanFile(const std::string& folder, int rank, int ranks) {
  return fmt::format("{}/plan-{}-of-{}.json", folder, rank, ranks);
}

std::string CheckpointName(const std::string& folder, int64_t step) {
  return fmt::format("{}/{}{}", folder, kPrefix, step);
}

std::vector<int64_t> StepsIn(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const int64_t step = StepOf(entry.path());
    if (step >= 0) steps.push_back(step);
  }
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

absl::StatusOr<StateFile> ReadWhole(const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(StateFile state, ReadState(folder));
  SLUICE_RETURN_IF_ERROR(SafetensorsReader::Open(WeightsFile(folder)).status());
  for (int rank = 0; rank < state.ranks; ++rank) {
    SLUICE_RETURN_IF_ERROR(
        SafetensorsReader::Open(OptimizerFile(folder, rank, state.ranks))
            .status());
  }
  return state;
}

absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& path) {
  std::error_code error;
  FoundCheckpoint found;
  if (fs::exists(StatePath(path), error)) {
    SLUICE_ASSIGN_OR_RETURN(found.state, ReadWhole(path));
    found.path = path;
    return found;
  }
  const std::vector<int64_t> steps = StepsIn(path);
  SLUICE_RETURN_IF_ERROR(CheckOneRun(path, steps));
  absl::Status newest;
  for (const int64_t step : steps) {
    const std::string name = CheckpointName(path, step);
    auto state = ReadWhole(name);
    if (state.ok()) {
      found.path = name;
      found.state = *std::move(state);
      return found;
    }
    if (absl::IsOutOfRange(state.status()) ||
        ShortageOf(state.status()) != Shortage::kNone) {
      return state.status();
    }
    if (newest.ok()) newest = state.status();
    found.passed_over += fmt::format(
        "{}{}{} is not whole ({})", found.passed_over.empty() ? "" : "; ",
        kPrefix, step, std::string(state.status().message()));
  }
  if (!newest.ok()) return newest;
  fs::directory_iterator(path, error);
  return absl::NotFoundError(
      fmt::format("--resume {}: {}; name a folder that --save wrote", path,
                  error ? error.message() : "no checkpoint in it"));
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return ErrnoStatus(errno, "write " + path);
  SLUICE_RETURN_IF_ERROR(WriteAll(fd.get(), text, path));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync " + path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const int error = errno;
    return Mark(
        absl::NotFoundError(fmt::format("{}: {}", path, std::strerror(error))),
        ShortageOfErrno(error));
  }
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace sluice::train
