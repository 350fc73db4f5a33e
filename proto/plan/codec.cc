#include "proto/plan/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "proto/base/status.h"
#include "proto/plan/codec_parts.h"
#include "proto/plan/json_reader.h"

namespace sluice::plan {
namespace {

using nlohmann::json;

constexpr double kMaxRate = 1e15;  // bytes per second
constexpr double kMaxReal = 1e300;
constexpr size_t kMaxTextBytes = 1024;
constexpr int64_t kMaxCount = int64_t{1} << 40;
constexpr int64_t kMaxTraffic = int64_t{1} << 56;
// Stands for a fraction that is not asked for.
constexpr double kNotAsked = -1;

// ---- Writing ---------------------------------------------------------------

json Write(const SegmentKind& segment) {
  return {{"name", segment.name},
          {"trace", Write(segment.trace)},
          {"seconds", segment.seconds},
          {"executions", segment.executions}};
}

json Write(const SkeletalClass& skeletal) {
  return {{"name", skeletal.name},
          {"bytes_per_layer", skeletal.bytes_per_layer.count()},
          {"recompute_seconds", skeletal.recompute_seconds},
          {"must_swap", skeletal.must_swap},
          {"traffic_in_fixed", skeletal.traffic_in_fixed},
          {"shared", skeletal.shared},
          {"can_keep", skeletal.can_keep},
          {"keep", skeletal.given.keep.value_or(kNotAsked)},
          {"swap", skeletal.given.swap.value_or(kNotAsked)},
          {"why", skeletal.why}};
}

template <typename T>
json WriteAll(const std::vector<T>& items, json (*write)(const T&)) {
  json list = json::array();
  for (const T& item : items) list.push_back(write(item));
  return list;
}

json Write(const RankProfile& p) {
  json profile = {{"job", p.job},
                  {"rank", p.rank.value()},
                  {"gpu", p.gpu.value()},
                  {"numa", p.numa.value()},
                  {"layers", p.layers},
                  {"resident_layers", p.resident_layers},
                  {"segments", WriteAll(p.segments, Write)},
                  {"classes", WriteAll(p.classes, Write)},
                  {"forward_layer_seconds", p.forward_layer_seconds},
                  {"backward_layer_seconds", p.backward_layer_seconds},
                  {"forward_d2h_fixed", p.forward_d2h_fixed.count()},
                  {"forward_h2d_fixed", p.forward_h2d_fixed.count()},
                  {"backward_d2h_fixed", p.backward_d2h_fixed.count()},
                  {"backward_h2d_fixed", p.backward_h2d_fixed.count()},
                  {"host_fixed", p.host_fixed.count()},
                  {"transient_capacity", p.transient_capacity.count()},
                  {"keep_reserve", p.keep_reserve.count()},
                  {"alpha", p.alpha},
                  {"settled", p.settled},
                  {"limited_by", p.limited_by}};
  if (p.host_limit.has_value()) {
    profile["host_limit"] = p.host_limit->count();
  }
  return profile;
}

json Write(const LinkCapacity& link) {
  return {{"name", link.name},
          {"h2d_bytes_per_second", link.h2d_bytes_per_second},
          {"d2h_bytes_per_second", link.d2h_bytes_per_second},
          {"profiles", link.profiles}};
}

json Write(const HostLimit& host) {
  return {{"name", host.name},
          {"bytes", host.bytes.count()},
          {"profiles", host.profiles}};
}

json Write(const NodeResources& resources) {
  return {{"links", WriteAll(resources.links, Write)},
          {"hosts", WriteAll(resources.hosts, Write)}};
}

json Write(const SegmentPlan& segment) {
  return {{"name", segment.name},
          {"base", segment.base.count()},
          {"placement", Write(segment.placement)}};
}

json Write(const ClassPlan& c) {
  return {{"name", c.name},
          {"keep", c.fractions.keep},
          {"swap", c.fractions.swap},
          {"recompute", c.fractions.recompute},
          {"why", c.why}};
}

json Write(const PlanLimit& limit) {
  return {{"what", limit.what},
          {"used", limit.used},
          {"capacity", limit.capacity},
          {"unit", limit.unit},
          {"binds", limit.binds},
          {"one_more_step_seconds", limit.one_more_step_seconds},
          {"one_more_recompute_seconds", limit.one_more_recompute_seconds}};
}

json Write(const RankPlan& plan) {
  return {{"job", plan.job},
          {"rank", plan.rank.value()},
          {"segments", WriteAll(plan.segments, Write)},
          {"transient_peak", plan.transient_peak.count()},
          {"classes", WriteAll(plan.classes, Write)},
          {"alpha", plan.alpha},
          {"alpha_limited_by", plan.alpha_limited_by},
          {"host_bytes", plan.host_bytes.count()}};
}

// ---- Reading ---------------------------------------------------------------

// What is copied per layer grows with the square of the length, and is no
// memory.
Bytes ReadTraffic(FieldReader& in, const char* key) {
  return Bytes(in.Int(key, 0, kMaxTraffic));
}

Bytes ReadBytes(FieldReader& in, const char* key) {
  return Bytes(in.Int(key, 0, kMaxAmount));
}

std::string ReadName(FieldReader& in, std::set<std::string>* taken) {
  std::string name = in.Text("name", kMaxNameBytes);
  if (in.ok() && name.empty()) in.Refuse("name", "is empty");
  if (in.ok() && !taken->insert(name).second) {
    in.Refuse("name", fmt::format("'{}' occurs twice", name));
  }
  return name;
}

SegmentKind ReadSegmentKind(FieldReader in, std::set<std::string>* names) {
  SegmentKind segment;
  segment.name = ReadName(in, names);
  segment.trace = ReadTrace(in.Object("trace"));
  segment.seconds = in.Number("seconds", 0, kMaxSeconds);
  segment.executions = in.Int("executions", 0, kMaxCount);
  in.Finish();
  return segment;
}

// A fraction in [0, 1]; -1: the planner chooses.
double ReadFraction(FieldReader& in, const char* key) {
  const double fraction = in.Number(key, -1, 1);
  if (fraction < 0 && fraction != kNotAsked) {
    in.Refuse(key, fmt::format("{} is neither -1 (the planner chooses) "
                               "nor between 0 and 1",
                               fraction));
  }
  return fraction;
}

std::optional<double> ReadAsked(FieldReader& in, const char* key) {
  const double fraction = ReadFraction(in, key);
  return fraction < 0 ? std::nullopt : std::optional(fraction);
}

SkeletalClass ReadSkeletalClass(FieldReader in, std::set<std::string>* names) {
  SkeletalClass skeletal;
  skeletal.name = ReadName(in, names);
  skeletal.bytes_per_layer = ReadBytes(in, "bytes_per_layer");
  skeletal.recompute_seconds = in.Number("recompute_seconds", 0, kMaxSeconds);
  skeletal.must_swap = in.Flag("must_swap");
  skeletal.traffic_in_fixed = in.Flag("traffic_in_fixed");
  skeletal.shared = in.Flag("shared");
  skeletal.can_keep = in.Flag("can_keep");
  skeletal.given.keep = ReadAsked(in, "keep");
  skeletal.given.swap = ReadAsked(in, "swap");
  skeletal.why = in.Text("why", kMaxTextBytes);
  in.Finish();
  return skeletal;
}

RankProfile ReadRankProfile(FieldReader& in) {
  RankProfile p;
  p.job = in.Int("job", 0, kMaxCount);
  p.rank = Rank(in.Int("rank", 0, kMaxId));
  p.gpu = DeviceIndex(in.Int("gpu", 0, kMaxCount));
  p.numa = NumaIndex(in.Int("numa", 0, kMaxCount));
  p.layers = in.Int("layers", 1, 1 << 20);
  p.resident_layers = in.Int("resident_layers", 0, p.layers);
  std::set<std::string> segments;
  in.Each("segments", kMaxSegments, [&](FieldReader element, size_t) {
    p.segments.push_back(ReadSegmentKind(element, &segments));
  });
  std::set<std::string> classes;
  in.Each("classes", kMaxClasses, [&](FieldReader element, size_t) {
    p.classes.push_back(ReadSkeletalClass(element, &classes));
  });
  p.forward_layer_seconds = in.Number("forward_layer_seconds", 0, kMaxSeconds);
  p.backward_layer_seconds =
      in.Number("backward_layer_seconds", 0, kMaxSeconds);
  p.forward_d2h_fixed = ReadTraffic(in, "forward_d2h_fixed");
  p.forward_h2d_fixed = ReadTraffic(in, "forward_h2d_fixed");
  p.backward_d2h_fixed = ReadTraffic(in, "backward_d2h_fixed");
  p.backward_h2d_fixed = ReadTraffic(in, "backward_h2d_fixed");
  p.host_fixed = ReadBytes(in, "host_fixed");
  if (in.Has("host_limit")) p.host_limit = ReadBytes(in, "host_limit");
  p.transient_capacity = ReadBytes(in, "transient_capacity");
  p.keep_reserve = ReadBytes(in, "keep_reserve");
  p.alpha = ReadFraction(in, "alpha");
  p.settled = in.Flag("settled");
  p.limited_by =
      in.Choice("limited_by", {"", "none", "bandwidth", "host", "flag"});
  return p;
}

std::vector<RankProfile> ReadRankProfiles(FieldReader& in) {
  std::vector<RankProfile> profiles;
  std::set<std::pair<int64_t, uint64_t>> ranks;
  in.Each("profiles", kMaxRanks, [&](FieldReader element, size_t) {
    profiles.push_back(ReadRankProfile(element));
    const RankProfile& p = profiles.back();
    if (!ranks.emplace(p.job, p.rank.value()).second) {
      element.Refuse("rank", fmt::format("{} occurs twice in job {}",
                                         p.rank.value(), p.job));
    }
    element.Finish();
  });
  return profiles;
}

// Positions below `count`, each once.
std::vector<size_t> ReadPositions(FieldReader& in, size_t count) {
  std::vector<size_t> positions;
  in.Each("profiles", kMaxRanks, [&](FieldReader element, size_t) {
    const auto most = static_cast<int64_t>(count) - 1;
    const auto at = static_cast<size_t>(element.Self(0, most));
    if (std::count(positions.begin(), positions.end(), at) > 0) {
      element.Refuse("", fmt::format("{} occurs twice", at));
    }
    positions.push_back(at);
  });
  return positions;
}

LinkCapacity ReadLink(FieldReader in, size_t count,
                      std::set<std::string>* names) {
  LinkCapacity link;
  link.name = ReadName(in, names);
  // A link without bandwidth would make every swap infinite.
  link.h2d_bytes_per_second = in.Number("h2d_bytes_per_second", 1, kMaxRate);
  link.d2h_bytes_per_second = in.Number("d2h_bytes_per_second", 1, kMaxRate);
  link.profiles = ReadPositions(in, count);
  in.Finish();
  return link;
}

HostLimit ReadHost(FieldReader in, size_t count, std::set<std::string>* names) {
  HostLimit host;
  host.name = ReadName(in, names);
  host.bytes = ReadBytes(in, "bytes");
  host.profiles = ReadPositions(in, count);
  in.Finish();
  return host;
}

// Of a request with `count` profiles.
NodeResources ReadResources(FieldReader in, size_t count) {
  NodeResources resources;
  std::set<std::string> names;
  in.Each("links", kMaxRanks, [&](FieldReader element, size_t) {
    resources.links.push_back(ReadLink(element, count, &names));
  });
  std::set<std::string> hosts;
  in.Each("hosts", 2 * kMaxRanks, [&](FieldReader element, size_t) {
    resources.hosts.push_back(ReadHost(element, count, &hosts));
  });
  in.Finish();
  return resources;
}

SegmentPlan ReadSegmentPlan(FieldReader in, std::set<std::string>* names) {
  SegmentPlan segment;
  segment.name = ReadName(in, names);
  segment.base = Bytes(in.Int("base", 0, kMaxTotal));
  segment.placement = ReadPlacement(in.Object("placement"));
  in.Finish();
  return segment;
}

ClassPlan ReadClassPlan(FieldReader in, std::set<std::string>* names) {
  ClassPlan c;
  c.name = ReadName(in, names);
  c.fractions.keep = in.Number("keep", 0, 1);
  c.fractions.swap = in.Number("swap", 0, 1);
  c.fractions.recompute = in.Number("recompute", 0, 1);
  const double sum =
      c.fractions.keep + c.fractions.swap + c.fractions.recompute;
  if (in.ok() && (sum < 1 - 1e-9 || sum > 1 + 1e-9)) {
    in.Refuse("keep", fmt::format("keep + swap + recompute is {}, not 1", sum));
  }
  c.why = in.Text("why", kMaxTextBytes);
  in.Finish();
  return c;
}

RankPlan ReadRankPlan(FieldReader in) {
  RankPlan plan;
  plan.job = in.Int("job", 0, kMaxCount);
  plan.rank = Rank(in.Int("rank", 0, kMaxId));
  std::set<std::string> segments;
  in.Each("segments", kMaxSegments, [&](FieldReader element, size_t) {
    plan.segments.push_back(ReadSegmentPlan(element, &segments));
  });
  plan.transient_peak = Bytes(in.Int("transient_peak", 0, kMaxTotal));
  std::set<std::string> classes;
  in.Each("classes", kMaxClasses, [&](FieldReader element, size_t) {
    plan.classes.push_back(ReadClassPlan(element, &classes));
  });
  plan.alpha = in.Number("alpha", 0, 1);
  plan.alpha_limited_by =
      in.Choice("alpha_limited_by", {"none", "bandwidth", "host", "flag"});
  plan.host_bytes = Bytes(in.Int("host_bytes", 0, kMaxTotal));
  in.Finish();
  return plan;
}

PlanLimit ReadLimit(FieldReader in) {
  PlanLimit limit;
  limit.what = in.Text("what", kMaxTextBytes);
  limit.used = in.Number("used", 0, kMaxReal);
  limit.capacity = in.Number("capacity", 0, kMaxReal);
  limit.unit = in.Choice("unit", {"bytes", "bytes_per_second"});
  limit.binds = in.Flag("binds");
  limit.one_more_step_seconds =
      in.Number("one_more_step_seconds", -kMaxSeconds, kMaxSeconds);
  limit.one_more_recompute_seconds =
      in.Number("one_more_recompute_seconds", -kMaxSeconds, kMaxSeconds);
  in.Finish();
  return limit;
}

void ReadExplanation(FieldReader& in, NodePlan* plan) {
  in.Each("limits", 8 * kMaxRanks, [plan](FieldReader element, size_t) {
    plan->limits.push_back(ReadLimit(element));
  });
  plan->units_solved = in.Int("units_solved", 0, kMaxCount);
  plan->units_known = in.Int("units_known", 0, kMaxCount);
}

std::string ReadHash(FieldReader& in) {
  std::string hash = in.Text("profile_hash", 32);
  if (in.ok() &&
      (hash.size() != 32 ||
       hash.find_first_not_of("0123456789abcdef") != std::string::npos)) {
    in.Refuse("profile_hash",
              fmt::format("'{}' is not 32 hexadecimal digits", hash));
  }
  return hash;
}

NodePlan ReadNodePlan(FieldReader& in) {
  NodePlan plan;
  plan.id = PlanId(in.Int("id", 0, kMaxId));
  plan.profile_hash = ReadHash(in);
  std::set<std::pair<int64_t, uint64_t>> ranks;
  in.Each("ranks", kMaxRanks, [&](FieldReader element, size_t) {
    plan.ranks.push_back(ReadRankPlan(element));
    const RankPlan& part = plan.ranks.back();
    if (!ranks.emplace(part.job, part.rank.value()).second) {
      element.Refuse("rank", fmt::format("{} occurs twice in job {}",
                                         part.rank.value(), part.job));
    }
  });
  plan.seconds = in.Number("seconds", 0, kMaxSeconds);
  plan.infeasible = in.Text("infeasible", 4096);
  plan.limited_by =
      in.Choice("limited_by", {"none", "gpu_memory", "host_memory"});
  ReadExplanation(in, &plan);
  return plan;
}

constexpr const char* kProfileFormat = "sluice.rank_profile";
constexpr const char* kProfilesFormat = "sluice.rank_profiles";
constexpr const char* kRequestFormat = "sluice.plan_request";
constexpr const char* kPlanFormat = "sluice.node_plan";

}  // namespace

std::string Encode(const RankProfile& profile) {
  return Finish(Write(profile), kProfileFormat);
}

std::string Encode(const std::vector<RankProfile>& profiles) {
  return Finish({{"profiles", WriteAll(profiles, Write)}}, kProfilesFormat);
}

std::string Encode(const PlanRequest& request) {
  return Finish({{"profiles", WriteAll(request.profiles, Write)},
                 {"resources", Write(request.resources)},
                 {"known", WriteUnits(request.known)}},
                kRequestFormat);
}

std::string Encode(const NodePlan& plan) {
  return Finish({{"id", plan.id.value()},
                 {"profile_hash", plan.profile_hash},
                 {"ranks", WriteAll(plan.ranks, Write)},
                 {"seconds", plan.seconds},
                 {"infeasible", plan.infeasible},
                 {"limited_by", plan.limited_by},
                 {"limits", WriteAll(plan.limits, Write)},
                 {"units_solved", plan.units_solved},
                 {"units_known", plan.units_known}},
                kPlanFormat);
}

absl::StatusOr<RankProfile> DecodeRankProfile(std::string_view bytes) {
  return Decode(bytes, kProfileFormat, ReadRankProfile);
}

absl::StatusOr<std::vector<RankProfile>> DecodeProfiles(
    std::string_view bytes) {
  return Decode(bytes, kProfilesFormat, ReadRankProfiles);
}

absl::StatusOr<PlanRequest> DecodePlanRequest(std::string_view bytes) {
  return Decode(bytes, kRequestFormat, [](FieldReader& in) {
    PlanRequest request;
    request.profiles = ReadRankProfiles(in);
    request.resources =
        ReadResources(in.Object("resources"), request.profiles.size());
    request.known = ReadUnits(in, "known");
    return request;
  });
}

absl::StatusOr<NodePlan> DecodeNodePlan(std::string_view bytes) {
  return Decode(bytes, kPlanFormat, ReadNodePlan);
}

std::string HashProfiles(const std::vector<RankProfile>& profiles) {
  return HashBytes(Encode(profiles));
}

}  // namespace sluice::plan
