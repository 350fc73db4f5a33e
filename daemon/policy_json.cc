#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "daemon/policy_file.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

// Returns Unix seconds, rounded to a millisecond. Reading rounds too, so that a
// time does not drift at each start.
double Unix(absl::Time at, const Clocks& now) {
  const absl::Duration since =
      now.wall - (now.monotonic - at) - absl::UnixEpoch();
  return std::round(absl::ToDoubleMilliseconds(since)) / 1000;
}

json LimitOf(Bytes limit) {
  return limit == Limits::kUnlimited ? json(nullptr) : json(limit.count());
}

// Returns `entry` with the setting's author and time.
json Signed(json entry, const std::string& who, absl::Time at,
            const Clocks& now) {
  entry["by"] = who;
  entry["at_unix_s"] = Unix(at, now);
  return entry;
}

json Entry(json target, const Budgets::Given& given, const Clocks& now) {
  target["gpu_bytes"] = LimitOf(given.limits.gpu);
  target["host_bytes"] = LimitOf(given.limits.host);
  return Signed(std::move(target), given.by.who, given.by.at, now);
}

json Entry(PoolId pool, const Principal& whose, const Reservation& given,
           const Clocks& now) {
  json entry = {{pool.kind == PoolKind::kGpu ? "gpu" : "numa", pool.ordinal},
                {"uid", whose.uid},
                {"bytes", given.bytes.count()}};
  if (!whose.cgroup.empty()) entry["cgroup"] = whose.cgroup;
  return Signed(std::move(entry), given.by.who, given.by.at, now);
}

json Entry(const MeasuredLinks& measured, const Clocks& now) {
  json links = json::array();
  for (const auto& [name, link] : measured.links) {
    links.push_back({{"name", name},
                     {"h2d_bytes_per_s", link.h2d},
                     {"d2h_bytes_per_s", link.d2h},
                     {"both_bytes_per_s", link.both}});
  }
  return Signed({{"links", std::move(links)}}, measured.by.who, measured.by.at,
                now);
}

// Reads one object. Done() fails if a key that was read is missing, or if the
// object has a key that was not read.
class PolicyReader {
 public:
  PolicyReader(const json& from, std::string name)
      : from_(from), name_(std::move(name)) {
    if (!from.is_object()) Fail("is no object");
  }

  bool Has(const char* key) const {
    return status_.ok() && from_.contains(key);
  }
  // Fails, and returns null, if the object does not have the key.
  const json& At(const char* key) {
    static const json kNull;
    known_.insert(key);
    if (Has(key)) return from_[key];
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
  double Speed(const char* key) {
    const double speed = Number(key);
    if (!(speed >= 0)) Fail(fmt::format("{} is {}", key, speed));
    return speed;
  }
  int64_t Whole(const char* key, int64_t most) {
    const json& value = At(key);
    if (value.is_number_integer() && value >= 0 && value <= most) {
      return value.get<int64_t>();
    }
    Fail(fmt::format("{} is no whole number from 0 to {}", key, most));
    return 0;
  }
  Bytes Size(const char* key) {
    return Bytes(Whole(key, (int64_t{1} << 60) - 1));
  }
  Bytes Limit(const char* key) {
    return At(key).is_null() ? Limits::kUnlimited : Size(key);
  }
  Principal Whose() {
    return {static_cast<uint32_t>(Whole("uid", UINT32_MAX)),
            Has("cgroup") ? Text("cgroup") : ""};
  }
  SetBy By(const Clocks& now) {
    // In seconds. Larger times could be read as infinite, which JSON lacks.
    constexpr double kMost = 1e12;
    const double unix_s = Number("at_unix_s");
    if (!(unix_s > -kMost && unix_s < kMost)) {
      Fail(fmt::format("at_unix_s is {}, no time of a clock", unix_s));
    }
    const absl::Time wall = absl::FromUnixMillis(std::llround(unix_s * 1000));
    return {true, Text("by"), now.monotonic - (now.wall - wall)};
  }
  void Fail(const std::string& what) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        PrintableLine(fmt::format("{} {}", name_, what)));
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

absl::Status ReadReservation(const json& from, const std::string& name,
                             const Clocks& now, Reservations& to) {
  PolicyReader entry(from, name);
  const bool gpu = entry.Has("gpu");
  const PoolId pool = {
      gpu ? PoolKind::kGpu : PoolKind::kHost,
      static_cast<uint64_t>(entry.Whole(gpu ? "gpu" : "numa", INT32_MAX))};
  const Reservation given = {entry.Size("bytes"), entry.By(now)};
  if (given.bytes == Bytes(0)) entry.Fail("reserves nothing");
  if (!to[pool].emplace(entry.Whose(), given).second) {
    entry.Fail("is there twice");
  }
  return entry.Done();
}

absl::Status ReadLimit(const json& from, const std::string& name,
                       const Clocks& now, Budgets::Saved& to) {
  PolicyReader entry(from, name);
  const Budgets::Given given = {
      {entry.Limit("gpu_bytes"), entry.Limit("host_bytes")}, entry.By(now)};
  bool is_new = false;
  if (entry.Has("job")) {
    const std::string job = entry.Text("job");
    if (job.empty()) entry.Fail("names no job");
    is_new = to.named_jobs.emplace(job, given).second;
  } else if (const Principal who = entry.Whose(); who.cgroup.empty()) {
    is_new = to.uids.emplace(who.uid, given).second;
  } else {
    is_new = to.principals.emplace(who, given).second;
  }
  if (!is_new) entry.Fail("is there twice");
  return entry.Done();
}

// Accepts any link names: the node may have changed since the measurement.
absl::StatusOr<MeasuredLinks> ReadMeasured(const json& from,
                                           const Clocks& now) {
  PolicyReader entry(from, "'measured_links'");
  MeasuredLinks measured = {.by = entry.By(now)};
  const json& links = entry.At("links");
  if (!links.is_array() || links.empty()) entry.Fail("names no link");
  SLUICE_RETURN_IF_ERROR(entry.Done());
  for (const json& each : links) {
    PolicyReader link(each, "a link of 'measured_links'");
    const std::string name = link.Text("name");
    const MeasuredLink speeds = {link.Speed("h2d_bytes_per_s"),
                                 link.Speed("d2h_bytes_per_s"),
                                 link.Speed("both_bytes_per_s")};
    if (name.empty()) link.Fail("has no name");
    if (!measured.links.emplace(name, speeds).second) {
      link.Fail("is there twice");
    }
    SLUICE_RETURN_IF_ERROR(link.Done());
  }
  return measured;
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
  // Reservations and measured links are written only if there are any, because
  // older daemons refuse these keys.
  for (const auto& [pool, users] : policy.reservations) {
    for (const auto& [whose, given] : users) {
      to["reservations"].push_back(Entry(pool, whose, given, now));
    }
  }
  if (policy.measured) to["measured_links"] = Entry(*policy.measured, now);
  if (const auto& drain = policy.drain) {
    to["drained"] =
        Signed({{"reason", drain->reason}}, drain->who, drain->at, now);
  }
  return to.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Policy> DecodePolicy(const std::string& text,
                                    const Clocks& now) {
  const json whole = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (whole.is_discarded()) {
    return absl::InvalidArgumentError("it is no JSON, or not all of it");
  }
  PolicyReader top(whole, "the file");
  if (top.Whole("sluice_policy", INT32_MAX) != kVersion) {
    top.Fail(fmt::format("is not of version {}", kVersion));
  }
  const json& limits = top.At("limits");
  const json& drained = top.At("drained");
  if (!limits.is_array()) top.Fail("'limits' is no list");
  const json measured =
      top.Has("measured_links") ? top.At("measured_links") : json();
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
  if (!measured.is_null()) {
    SLUICE_ASSIGN_OR_RETURN(policy.measured, ReadMeasured(measured, now));
  }
  if (!drained.is_null()) {
    PolicyReader drain(drained, "'drained'");
    SetBy by = drain.By(now);
    policy.drain = {std::move(by.who), drain.Text("reason"), by.at};
    SLUICE_RETURN_IF_ERROR(drain.Done());
  }
  return policy;
}

}  // namespace sluice::daemon
