#include "client/train/checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr char kPrefix[] = "checkpoint-";
constexpr char kStateName[] = "trainer_state.json";

// The flags that weights and states only make sense with.
Json ModelFlags(const RunOptions& o) {
  const stream::ModelShape& m = o.model;
  Json flags = {{"--arch", m.name},         {"--layers", m.layers},
                {"--hidden", m.hidden},     {"--heads", m.heads},
                {"--kv-heads", m.kv_heads}, {"--ffn", m.ffn},
                {"--vocab", m.vocab},       {"--dtype", Name(o.dtype)}};
  // A learned position table is as long as the sequence.
  if (m.max_positions > 0) flags["--seq-len"] = o.seq_len;
  return flags;
}

absl::Status Sync(const std::string& path, int flags) {
  const UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync " + path);
  return absl::OkStatus();
}

std::string FinalName(const std::string& folder, int64_t step) {
  return fmt::format("{}/{}{}", folder, kPrefix, step);
}

// The step in a checkpoint folder's name; negative: it is none.
int64_t StepOf(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return -1;
  char* end = nullptr;
  const char* digits = name.c_str() + std::strlen(kPrefix);
  const long long step = std::strtoll(digits, &end, 10);
  return *digits != '\0' && *end == '\0' ? step : -1;
}

absl::Status CompareFlags(const std::string& path, const Json& saved,
                          const RunOptions& options) {
  const Json wanted = ModelFlags(options);
  for (const auto& [flag, value] : wanted.items()) {
    if (!saved.is_object() || !saved.contains(flag)) {
      return BadInput(fmt::format("{}: does not say {}", path, flag));
    }
    if (saved[flag] != value) {
      return BadInput(fmt::format(
          "--resume {}: it was trained with {} {}, this run has {}: give the "
          "same",
          path, flag, saved[flag].dump(), value.dump()));
    }
  }
  return absl::OkStatus();
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

absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state) {
  const Json json = {{"format", kFormat},
                     {"step", state.step},
                     {"next_sequence", state.next_sequence},
                     {"ranks", state.ranks},
                     {"seed", options.seed},
                     {"seq_len", options.seq_len},
                     {"method", Name(options.method)},
                     {"model", ModelFlags(options)}};
  return WriteFile(folder + "/" + kStateName, json.dump(2) + "\n");
}

absl::StatusOr<StateFile> ReadState(const std::string& folder,
                                    const RunOptions& options) {
  const std::string path = folder + "/" + kStateName;
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name) -> int64_t {
    if (!json.is_object() || !json.contains(name) ||
        !json[name].is_number_unsigned()) {
      return -1;
    }
    return json[name].get<int64_t>();
  };
  StateFile state;
  state.step = number("step");
  state.next_sequence = number("next_sequence");
  const int64_t ranks = number("ranks");
  if (number("format") != kFormat || state.step < 0 ||
      state.next_sequence < 0 || ranks < 1 || ranks > 1 << 20) {
    return BadInput(fmt::format("{}: not a whole trainer state of format {}",
                                path, kFormat));
  }
  state.ranks = static_cast<int>(ranks);
  SLUICE_RETURN_IF_ERROR(
      CompareFlags(path, json.value("model", Json()), options));
  return state;
}

std::string PlanKey(const RunOptions& o, int ranks, Bytes hbm) {
  Json key = ModelFlags(o);
  key["--seq-len"] = o.seq_len;
  key["--chunk"] = o.chunk;
  key["--alpha"] = o.alpha;
  if (!o.keep) key["--no-keep"] = true;
  for (const auto& [name, f] : o.fractions) {
    key["--fractions"][name] = {f.keep, f.swap};
  }
  key["--prefetch"] = o.prefetch;
  key["ranks"] = ranks;
  key["hbm"] = hbm.count();
  return key.dump();
}

absl::StatusOr<std::string> FindCheckpoint(const std::string& path) {
  std::error_code error;
  if (fs::exists(path + "/" + kStateName, error)) return path;
  std::string best;
  int64_t best_step = -1;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const int64_t step = StepOf(entry.path());
    if (step <= best_step) continue;
    best_step = step;
    best = entry.path().string();
  }
  if (best.empty()) {
    return absl::NotFoundError(
        fmt::format("--resume {}: {}; name a folder that --save wrote", path,
                    error ? error.message() : "no checkpoint in it"));
  }
  return best;
}

absl::Status CheckSaveFolder(const std::string& folder) {
  // Only making a folder shows whether one can be made: permissions say yes
  // to root, and of a full or virtual file system nothing. It is made under a
  // name of its own in the deepest folder that is there: what others may be
  // making at this moment, such as our parents, is not touched.
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  while (!fs::exists(at, error) && at != at.parent_path()) {
    at = at.parent_path();
  }
  std::string probe = (at / ".sluice-XXXXXX").string();
  if (mkdtemp(probe.data()) == nullptr) {
    const int why = errno;
    return BadInput(
        fmt::format("--save {}: {}; name a folder that can be written", folder,
                    std::strerror(why)),
        why);
  }
  fs::remove(probe, error);
  return absl::OkStatus();
}

absl::StatusOr<std::string> BeginFolder(const std::string& folder,
                                        int64_t step) {
  const std::string temporary = FinalName(folder, step) + ".tmp";
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) {
    return BadInput(fmt::format("--save {}: cannot make {}: {}", folder,
                                temporary, error.message()),
                    error.value());
  }
  return temporary;
}

absl::Status CommitFolder(const std::string& temporary,
                          const std::string& folder, int64_t step) {
  SLUICE_RETURN_IF_ERROR(Sync(temporary, O_RDONLY | O_DIRECTORY));
  const std::string place = FinalName(folder, step);
  const std::string old = place + ".old";
  std::error_code error;
  fs::remove_all(old, error);
  // A directory cannot be renamed over a full one: move that one away first.
  const bool replaces = fs::exists(place, error);
  if (replaces) fs::rename(place, old, error);
  if (!error) fs::rename(temporary, place, error);
  if (error) {
    return ErrnoStatus(error.value(),
                       fmt::format("rename {} to {}", temporary, place));
  }
  fs::remove_all(old, error);
  return Sync(folder, O_RDONLY | O_DIRECTORY);
}

void RemoveFolder(const std::string& temporary) {
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return ErrnoStatus(errno, "write " + path);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "write " + path);
    at += static_cast<size_t>(n);
  }
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync " + path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const int error = errno;
    return BadInput(fmt::format("{}: {}", path, std::strerror(error)), error);
  }
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace sluice::train
