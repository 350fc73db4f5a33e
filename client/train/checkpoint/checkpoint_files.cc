#include "client/train/checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/train/checkpoint/safetensors.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice::train {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 3;

// Returns the flags that weights and states depend on.
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

// Returns the whole number with this name, or -1.
int64_t Number(const Json& json, const char* name) {
  if (!json.is_object() || !json.contains(name) ||
      !json[name].is_number_unsigned()) {
    return -1;
  }
  return json[name].get<int64_t>();
}

std::string InWords(const Json& key, const std::string& name) {
  if (name == "hbm" && key.contains(name)) {
    return FormatBytes(Bytes(Number(key, "hbm"))) + " of GPU memory per rank";
  }
  if (name == "resident") {
    return key.contains(name) ? "everything kept on the GPU"
                              : "not everything kept on the GPU";
  }
  if (name == "kept") {
    return key.contains(name) ? fmt::format("{} of the tokens kept on the GPU",
                                            key[name].dump())
                              : "no tokens kept on the GPU";
  }
  if (!key.contains(name)) return "no " + name;
  if (key[name] == true) return name;
  if (name == "--alpha" && key[name] < 0) return "--alpha auto";
  return fmt::format("{} {}", name, key[name].dump());
}

// Reads trainer_state.json. The value is no object if the text is not JSON.
absl::StatusOr<Json> ReadJson(const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(StatePath(folder)));
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

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

// InvalidArgument: the folder has checkpoints of more than one run. Checkpoints
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
  const std::string list =
      absl::StrJoin(newest, ", ", [](std::string* text, const auto& of) {
        absl::StrAppend(text, kPrefix, of.second, " is of run ", of.first);
      });
  return BadInput(
      "--resume {}: it holds checkpoints of {} runs ({}): name one of them",
      folder, newest.size(), list);
}

}  // namespace

std::string TextField(const Json& json, const char* name) {
  if (!json.is_object() || !json.contains(name)) return "";
  return json[name].is_string() ? json[name].get<std::string>() : "";
}

std::string NewRunId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string StatePath(const std::string& folder) {
  return folder + "/trainer_state.json";
}

int64_t StateFile::NextToken(int64_t tokens) const {
  if (format != 1) return next_token;
  const int64_t sequences = (tokens - 1) / seq_len;
  return sequences < 1 ? 0 : next_sequence % sequences * seq_len;
}

absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state) {
  const Json json = {{"format", kFormat},
                     {"run", state.identity.run},
                     {"step", state.step},
                     {"next_token", state.next_token},
                     {"data",
                      {{"fingerprint", state.identity.data},
                       {"tokens", state.identity.data_tokens}}},
                     {"ranks", state.ranks},
                     {"seed", options.seed},
                     {"seq_len", options.seq_len},
                     {"method", Name(options.method)},
                     {"model", ModelFlags(options)}};
  return WriteFile(StatePath(folder), json.dump(2) + "\n");
}

absl::StatusOr<StateFile> ReadState(const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadJson(folder));
  const std::string path = StatePath(folder);
  const int64_t format = Number(json, "format");
  if (format > kFormat) {
    return absl::OutOfRangeError(fmt::format(
        "{}: format {}, written by a newer sluice-train; this one reads "
        "formats 1 to {}: resume with the program that wrote it",
        path, format, kFormat));
  }
  const int64_t ranks = Number(json, "ranks");
  StateFile state{.format = static_cast<int>(format),
                  .step = Number(json, "step"),
                  .ranks = static_cast<int>(ranks),
                  .identity = {.run = TextField(json, "run")},
                  .seq_len = Number(json, "seq_len")};
  int64_t& place = format == 1 ? state.next_sequence : state.next_token;
  place = Number(json, format == 1 ? "next_sequence" : "next_token");
  if (format < 1 || state.step < 0 || place < 0 || state.seq_len < 1 ||
      ranks < 1 || ranks > 1 << 20) {
    return BadInput("{}: not a whole trainer state", path);
  }
  if (json.contains("data")) {
    state.identity.data = TextField(json["data"], "fingerprint");
    state.identity.data_tokens = Number(json["data"], "tokens");
  }
  return state;
}

absl::Status CheckFlags(const std::string& folder, const RunOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadJson(folder));
  const std::string path = StatePath(folder);
  const Json saved = json.is_object() ? json.value("model", Json()) : Json();
  const Json wanted = ModelFlags(options);
  for (const auto& [flag, value] : wanted.items()) {
    if (!saved.is_object() || !saved.contains(flag)) {
      return BadInput("{}: does not say {}", path, flag);
    }
    if (saved[flag] != value) {
      return BadInput(
          "--resume {}: it was trained with {} {}, this run has {}: give the "
          "same",
          path, flag, saved[flag].dump(), value.dump());
    }
  }
  return absl::OkStatus();
}

std::string PlanKey(const RunOptions& o, int ranks, Bytes hbm,
                    const std::string& attention, bool rounds_output,
                    stream::StatePlace states) {
  Json key = ModelFlags(o);
  key["--seq-len"] = o.seq_len;
  key["--chunk"] = o.chunk;
  key["--alpha"] = o.alpha;
  if (!o.keep) key["--no-keep"] = true;
  for (const auto& [name, f] : o.fractions) {
    key["--fractions"][name] = {f.keep, f.swap};
  }
  key["--prefetch"] = o.prefetch;
  key["--backward-order"] =
      stream::Name(o.order.value_or(stream::BackwardOrder::kKeysOuter));
  if (o.resident) key["resident"] = true;
  if (o.rerun_chunks > 0) {
    key["--rerun"] = o.rerun_chunks;
    key["--rerun-layers"] = o.rerun_layers;
  }
  if (o.kept > 0) key["kept"] = o.kept;
  // A plan holds for one kernel, because each kernel has its own buffers.
  if (!attention.empty()) key["--attention"] = attention;
  if (rounds_output) key["--round-output"] = true;
  // The place of the states changes how much HBM is left.
  if (states == stream::StatePlace::kHost) key["states in host memory"] = true;
  key["ranks"] = ranks;
  key["hbm"] = hbm.count();
  return key.dump();
}

std::string WhyAnotherKey(const std::string& saved, const std::string& wanted) {
  const Json then = Json::parse(saved, nullptr, false);
  const Json now = Json::parse(wanted, nullptr, false);
  if (!then.is_object() || !now.is_object()) {
    return "it does not say what it was made for";
  }
  for (const Json* const keys : {&now, &then}) {
    for (const auto& [name, value] : keys->items()) {
      if (now.contains(name) && then.contains(name) &&
          now[name] == then[name]) {
        continue;
      }
      return fmt::format("it was made with {}, this run has {}",
                         InWords(then, name), InWords(now, name));
    }
  }
  return "its flags are in another order";
}

std::optional<stream::Settings> SettingsOf(const std::string& key) {
  const Json json = Json::parse(key, nullptr, false);
  stream::Settings settings;
  settings.chunk = Number(json, "--chunk");
  const int64_t prefetch = Number(json, "--prefetch");
  if (settings.chunk < 1 || prefetch < 1 || prefetch > 64 ||
      !json.contains("--backward-order")) {
    return std::nullopt;
  }
  settings.prefetch = static_cast<int>(prefetch);
  using stream::BackwardOrder;
  settings.order =
      json["--backward-order"] == stream::Name(BackwardOrder::kQueriesOuter)
          ? BackwardOrder::kQueriesOuter
          : BackwardOrder::kKeysOuter;
  settings.resident = json.contains("resident");
  if (json.contains("--rerun")) {
    settings.rerun_chunks = Number(json, "--rerun");
    settings.rerun_layers = Number(json, "--rerun-layers");
    if (settings.rerun_chunks < 1 || settings.rerun_layers < 1) {
      return std::nullopt;
    }
  }
  if (json.contains("kept") && json["kept"].is_number()) {
    settings.kept = json["kept"].get<double>();
  }
  return settings;
}

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

absl::Status CheckSaveFolder(const std::string& folder) {
  // Only making a folder shows whether it can be made: permissions do not bind
  // root, and say nothing of a full or virtual file system. The unique name in
  // the deepest existing folder touches no other process's files.
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  while (!fs::exists(at, error) && at != at.parent_path()) {
    at = at.parent_path();
  }
  std::string probe = (at / ".sluice-XXXXXX").string();
  if (mkdtemp(probe.data()) == nullptr) {
    const int why = errno;
    return BadInputOfErrno(
        why, fmt::format("--save {}: {}; name a folder that can be written",
                         folder, std::strerror(why)));
  }
  fs::remove(probe, error);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SaveFolder>> SaveFolder::Claim(
    const std::string& folder, const RunIdentity& identity,
    const StateFile* goes_on_from) {
  std::error_code error;
  const bool made = fs::create_directories(folder, error);
  if (error) {
    return BadInputOfErrno(
        error.value(),
        fmt::format("--save {}: {}; name a folder that can be written", folder,
                    error.message()));
  }
  std::unique_ptr<SaveFolder> claimed(new SaveFolder());
  claimed->folder_ = folder;
  claimed->made_ = made;
  claimed->identity_ = identity;
  claimed->lock_ =
      UniqueFd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!claimed->lock_) return ErrnoStatus(errno, "--save " + folder);
  const int locked = flock(claimed->lock_.get(), LOCK_EX | LOCK_NB);
  if (locked != 0 && errno == EWOULDBLOCK) {  // else: flock may be unsupported
    return BadInput(
        "--save {}: another run is saving into it now: name another folder",
        folder);
  }
  claimed->CleanUp();
  SLUICE_RETURN_IF_ERROR(claimed->CheckContent(goes_on_from));
  return claimed;
}

SaveFolder::~SaveFolder() {
  std::error_code ignored;
  if (made_) fs::remove(folder_, ignored);  // fails if it is not empty
}

// Removes the leftovers of processes that died while saving. Puts a replaced
// checkpoint back if the process died before it renamed the new one.
void SaveFolder::CleanUp() {
  std::error_code error;
  std::vector<fs::path> unfinished, replaced;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-")) continue;
    if (entry.path().extension() == ".tmp") unfinished.push_back(entry.path());
    if (entry.path().extension() == ".old") replaced.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
  for (const fs::path& path : replaced) {
    fs::path place = path;
    place.replace_extension();
    if (fs::exists(place, error)) {
      fs::remove_all(path, error);
    } else {
      fs::rename(path, place, error);
    }
  }
}

absl::Status SaveFolder::CheckContent(const StateFile* goes_on_from) const {
  for (const int64_t step : StepsIn(folder_)) {
    const auto state = ReadWhole(CheckpointName(folder_, step));
    if (absl::IsOutOfRange(state.status())) return state.status();
    if (!state.ok()) continue;  // no run can resume it
    const std::string& run = state->identity.run;
    // A checkpoint without an id (format 1) may be of the resumed run.
    const bool former = run.empty() && goes_on_from != nullptr;
    if (run != identity_.run && !former) {
      return BadInput(
          "--save {}: it holds checkpoint-{} of {}, this is run {}: name "
          "another folder, or go on with that run by --resume {}",
          folder_, step, run.empty() ? "another run" : "run " + run,
          identity_.run, folder_);
    }
    if (goes_on_from != nullptr && step > goes_on_from->step) {
      return BadInput(
          "--save {}: it holds checkpoint-{} of this run, which goes on from "
          "step {} here: name another folder, or move that checkpoint away",
          folder_, step, goes_on_from->step);
    }
  }
  return absl::OkStatus();
}

std::string SaveFolder::Temporary(const std::string& folder, int64_t step) {
  return CheckpointName(folder, step) + ".tmp";
}

absl::Status SaveFolder::Begin(int64_t step) {
  const std::string temporary = Temporary(folder_, step);
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return ErrnoStatus(error.value(), "make " + temporary);
  return absl::OkStatus();
}

absl::Status SaveFolder::Commit(int64_t step) {
  const std::string temporary = Temporary(folder_, step);
  SLUICE_RETURN_IF_ERROR(SyncFolder(temporary));
  const std::string place = CheckpointName(folder_, step);
  const std::string old = place + ".old";
  std::error_code error, ignored;
  fs::remove_all(old, ignored);
  // A folder cannot be renamed over one that is not empty.
  const bool replaces = fs::exists(place, ignored);
  if (replaces) fs::rename(place, old, error);
  if (!error) {
    fs::rename(temporary, place, error);
    if (error && replaces) fs::rename(old, place, ignored);
  }
  if (error) {
    return ErrnoStatus(error.value(),
                       fmt::format("rename {} to {}", temporary, place));
  }
  fs::remove_all(old, ignored);
  return SyncFolder(folder_);
}

void SaveFolder::Abandon(int64_t step) {
  std::error_code ignored;
  fs::remove_all(Temporary(folder_, step), ignored);
}

void SaveFolder::Rotate(int64_t keep) {
  if (keep <= 0) return;
  int64_t whole = 0;
  for (const int64_t step : StepsIn(folder_)) {
    const std::string name = CheckpointName(folder_, step);
    const auto state = ReadState(name);
    if (!state.ok() || state->identity.run != identity_.run) continue;
    if (ReadWhole(name).ok() && ++whole <= keep) continue;
    if (whole == 0) continue;  // incomplete, but newer than every complete one
    // Renamed first: a half removed checkpoint must not look complete.
    std::error_code error;
    const std::string gone = Temporary(folder_, step);
    fs::rename(name, gone, error);
    if (!error) fs::remove_all(gone, error);
  }
}

}  // namespace sluice::train
