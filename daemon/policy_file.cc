#include "daemon/policy_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/runtime/runtime_dir.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr size_t kMaxFileBytes = size_t{16} << 20;

// To a millisecond, rounded here and where it is read: a time that lost less
// than the last digit at each start would wander.
double Unix(absl::Time at, const Clocks& now) {
  const absl::Duration since =
      now.wall - (now.monotonic - at) - absl::UnixEpoch();
  return std::round(absl::ToDoubleMilliseconds(since)) / 1000;
}

json LimitOf(Bytes limit) {
  return limit == Limits::kUnlimited ? json(nullptr) : json(limit.count());
}

json Entry(json target, const Budgets::Given& given, const Clocks& now) {
  target["gpu_bytes"] = LimitOf(given.limits.gpu);
  target["host_bytes"] = LimitOf(given.limits.host);
  target["by"] = given.by.who;
  target["at_unix_s"] = Unix(given.by.at, now);
  return target;
}

// Reads one object: every key must be there, and no other.
class Reader {
 public:
  Reader(const json& from, std::string name)
      : from_(from), name_(std::move(name)) {
    if (!from.is_object()) Fail("is no object");
  }

  bool Has(const char* key) const {
    return status_.ok() && from_.contains(key);
  }
  const json& At(const char* key) {
    static const json kNull;
    known_.insert(key);
    if (!status_.ok()) return kNull;
    const auto found = from_.find(key);
    if (found != from_.end()) return *found;
    Fail(fmt::format("has no '{}'", key));
    return kNull;
  }
  std::string Text(const char* key) {
    const json& value = At(key);
    if (value.is_string()) return value.get<std::string>();
    Fail(fmt::format("{} is no string", key));
    return "";
  }
  double Number(const char* key) {
    const json& value = At(key);
    if (value.is_number()) return value.get<double>();
    Fail(fmt::format("{} is no number", key));
    return 0;
  }
  int64_t Whole(const char* key, int64_t most) {
    const json& value = At(key);
    if (value.is_number_integer() && value >= 0 && value <= most) {
      return value.get<int64_t>();
    }
    Fail(fmt::format("{} is no whole number from 0 to {}", key, most));
    return 0;
  }
  Bytes Limit(const char* key) {
    return At(key).is_null() ? Limits::kUnlimited
                             : Bytes(Whole(key, (int64_t{1} << 60) - 1));
  }
  void Fail(const std::string& what) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        Printable(fmt::format("{} {}", name_, what)));
  }
  absl::Status Done() {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : from_.items()) {
      if (!known_.contains(key)) Fail(fmt::format("has an unknown '{}'", key));
    }
    return status_;
  }

 private:
  const json& from_;
  const std::string name_;
  std::set<std::string, std::less<>> known_;
  absl::Status status_;
};

json EntryOf(PoolId pool, const Principal& whose, const Reservation& given,
             const Clocks& now) {
  json entry = {{pool.kind == PoolKind::kGpu ? "gpu" : "numa", pool.ordinal},
                {"uid", whose.uid},
                {"bytes", given.bytes.count()},
                {"by", given.by.who},
                {"at_unix_s", Unix(given.by.at, now)}};
  if (!whose.cgroup.empty()) entry["cgroup"] = whose.cgroup;
  return entry;
}

absl::Time TimeOf(Reader& entry, const Clocks& now) {
  // No date of ours. Much later ones would be infinite, and not be written.
  constexpr double kMost = 1e12;
  const double unix_s = entry.Number("at_unix_s");
  if (!(unix_s > -kMost && unix_s < kMost)) {
    entry.Fail(fmt::format("at_unix_s is {}, no time of a clock", unix_s));
  }
  const absl::Time wall = absl::FromUnixMillis(std::llround(unix_s * 1000));
  return now.monotonic - (now.wall - wall);
}

absl::Status ReadReservation(const json& from, const std::string& name,
                             const Clocks& now, Reservations& to) {
  Reader entry(from, name);
  const bool gpu = entry.Has("gpu");
  const PoolId pool = {
      gpu ? PoolKind::kGpu : PoolKind::kHost,
      static_cast<uint64_t>(entry.Whole(gpu ? "gpu" : "numa", INT32_MAX))};
  Principal whose;
  whose.uid = static_cast<uint32_t>(entry.Whole("uid", UINT32_MAX));
  if (entry.Has("cgroup")) whose.cgroup = entry.Text("cgroup");
  Reservation given;
  given.bytes = Bytes(entry.Whole("bytes", (int64_t{1} << 60) - 1));
  given.by = {true, entry.Text("by"), TimeOf(entry, now)};
  if (given.bytes == Bytes(0)) entry.Fail("reserves nothing");
  SLUICE_RETURN_IF_ERROR(entry.Done());
  if (to[pool].emplace(whose, given).second) return absl::OkStatus();
  return absl::InvalidArgumentError(name + " is there twice");
}

absl::Status ReadLimit(const json& from, const std::string& name,
                       const Clocks& now, Budgets::Saved& to) {
  Reader entry(from, name);
  Budgets::Given given;
  given.limits = {entry.Limit("gpu_bytes"), entry.Limit("host_bytes")};
  given.by = {true, entry.Text("by"), TimeOf(entry, now)};
  std::string job, cgroup;
  uint32_t uid = 0;
  const bool of_job = entry.Has("job");
  if (of_job) {
    job = entry.Text("job");
    if (job.empty()) entry.Fail("names no job");
  } else {
    uid = static_cast<uint32_t>(entry.Whole("uid", UINT32_MAX));
    if (entry.Has("cgroup")) cgroup = entry.Text("cgroup");
  }
  SLUICE_RETURN_IF_ERROR(entry.Done());
  bool is_new = false;
  if (of_job) {
    is_new = to.named_jobs.emplace(job, given).second;
  } else if (cgroup.empty()) {
    is_new = to.uids.emplace(uid, given).second;
  } else {
    is_new = to.principals.emplace(Principal{uid, cgroup}, given).second;
  }
  if (is_new) return absl::OkStatus();
  return absl::InvalidArgumentError(name + " is there twice");
}

absl::StatusOr<std::string> ReadAll(const UniqueFd& fd) {
  std::string bytes;
  char piece[4096];
  while (bytes.size() <= kMaxFileBytes) {
    const ssize_t got = read(fd.get(), piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read it");
    if (got == 0) return bytes;
    bytes.append(piece, static_cast<size_t>(got));
  }
  return absl::InvalidArgumentError(
      fmt::format("it is larger than {} bytes", kMaxFileBytes));
}

absl::Status WriteAll(const UniqueFd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "write it");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync " + folder);
  return absl::OkStatus();
}

}  // namespace

std::string EncodePolicy(const Policy& policy, const Clocks& now) {
  json limits = json::array();
  for (const auto& [uid, given] : policy.limits.uids) {
    limits.push_back(Entry({{"uid", uid}}, given, now));
  }
  for (const auto& [who, given] : policy.limits.principals) {
    limits.push_back(
        Entry({{"uid", who.uid}, {"cgroup", who.cgroup}}, given, now));
  }
  for (const auto& [job, given] : policy.limits.named_jobs) {
    limits.push_back(Entry({{"job", job}}, given, now));
  }
  json to = {{"sluice_policy", kVersion},
             {"limits", std::move(limits)},
             {"drained", nullptr}};
  // Only where there are any: an older daemon knows of none.
  for (const auto& [pool, users] : policy.reservations) {
    for (const auto& [whose, given] : users) {
      to["reservations"].push_back(EntryOf(pool, whose, given, now));
    }
  }
  if (policy.drain) {
    to["drained"] = {{"by", policy.drain->who},
                     {"reason", policy.drain->reason},
                     {"at_unix_s", Unix(policy.drain->at, now)}};
  }
  return to.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Policy> DecodePolicy(const std::string& text,
                                    const Clocks& now) {
  const json whole = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (whole.is_discarded()) {
    return absl::InvalidArgumentError("it is no JSON, or not all of it");
  }
  Reader top(whole, "the file");
  if (top.Whole("sluice_policy", INT32_MAX) != kVersion) {
    top.Fail(fmt::format("is not of version {}", kVersion));
  }
  const json& limits = top.At("limits");
  const json& drained = top.At("drained");
  if (!limits.is_array()) top.Fail("'limits' is no list");
  const json reserved =
      top.Has("reservations") ? top.At("reservations") : json::array();
  if (!reserved.is_array()) top.Fail("'reservations' is no list");
  SLUICE_RETURN_IF_ERROR(top.Done());
  Policy policy;
  for (size_t i = 0; i < limits.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(
        ReadLimit(limits[i], fmt::format("limits[{}]", i), now, policy.limits));
  }
  for (size_t i = 0; i < reserved.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(ReadReservation(reserved[i],
                                           fmt::format("reservations[{}]", i),
                                           now, policy.reservations));
  }
  if (!drained.is_null()) {
    Reader drain(drained, "'drained'");
    policy.drain =
        Drain{drain.Text("by"), drain.Text("reason"), TimeOf(drain, now)};
    SLUICE_RETURN_IF_ERROR(drain.Done());
  }
  return policy;
}

absl::StatusOr<Policy> PolicyFile::Read(const Clocks& now) const {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        fmt::format("the policy {} is not used: {}; mend it, or move it away "
                    "to start without what administrators had set",
                    path(), why));
  };
  if (folder_.empty()) return Policy();
  const UniqueFd fd(
      open(path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return Policy();
  if (!fd) return refuse(std::string(ErrnoStatus(errno, "open it").message()));
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return refuse("it is no regular file");
  }
  if ((info.st_uid != geteuid() && info.st_uid != 0) ||
      (info.st_mode & 022) != 0) {
    return refuse("others than its user may write to it (chown, chmod go-w)");
  }
  const auto bytes = ReadAll(fd);
  if (!bytes.ok()) return refuse(std::string(bytes.status().message()));
  auto policy = DecodePolicy(*bytes, now);
  if (!policy.ok()) return refuse(std::string(policy.status().message()));
  return policy;
}

absl::Status PolicyFile::Write(const Policy& policy, const Clocks& now) const {
  const auto fault = [&](const absl::Status& why) {
    return Annotate(why, fmt::format("the policy {} was not written", path()));
  };
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) {
    std::filesystem::create_directories(folder_, error);
    if (error) return fault(ErrnoStatus(error.value(), "make " + folder_));
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all,
                                 error);
  }
  if (absl::Status safe =
          CheckOwnDirectory(folder_, "policy's folder", "folder in [policy]");
      !safe.ok()) {
    return fault(safe);
  }
  const std::string beside = path() + ".new";
  unlink(beside.c_str());  // of a daemon that ended in here
  const UniqueFd fd(open(beside.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                         0600));
  if (!fd) return fault(ErrnoStatus(errno, "make " + beside));
  absl::Status status = WriteAll(fd, EncodePolicy(policy, now));
  if (status.ok() && fsync(fd.get()) != 0) {
    status = ErrnoStatus(errno, "sync it");
  }
  if (status.ok() && rename(beside.c_str(), path().c_str()) != 0) {
    status = ErrnoStatus(errno, "put it in its place");
  }
  if (status.ok()) return SyncFolder(folder_);
  unlink(beside.c_str());
  return fault(status);
}

}  // namespace sluice::daemon
