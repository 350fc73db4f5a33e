#include "proto/plan/codec.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/plan/codec_parts.h"

namespace sluice::plan {
namespace {

using nlohmann::json;

constexpr double kMaxRate = 1e15;  // a rate, in bytes per second
constexpr double kMaxReal = 1e300;

// ---- Writing ---------------------------------------------------------------

json Write(const LinkCapacity& link) {
  json written = {{"name", link.name},
                  {"h2d_bytes_per_second", link.h2d_bytes_per_second},
                  {"d2h_bytes_per_second", link.d2h_bytes_per_second},
                  {"profiles", link.profiles}};
  if (link.both_bytes_per_second) {
    written["both_bytes_per_second"] = *link.both_bytes_per_second;
  }
  return written;
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
  json planned = {{"name", c.name},
                  {"keep", c.fractions.keep},
                  {"swap", c.fractions.swap},
                  {"recompute", c.fractions.recompute},
                  {"why", c.why}};
  WriteKindName(c.kind, &planned);
  return planned;
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

// Reads distinct positions below `count`.
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
  // A link without bandwidth would make every swap infinitely slow.
  link.h2d_bytes_per_second = in.Number("h2d_bytes_per_second", 1, kMaxRate);
  link.d2h_bytes_per_second = in.Number("d2h_bytes_per_second", 1, kMaxRate);
  if (in.Has("both_bytes_per_second")) {
    link.both_bytes_per_second =
        in.Number("both_bytes_per_second", 1, kMaxRate);
  }
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

// Reads the resources of a request with `count` profiles.
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
  ReadClassName(in, names, &c.kind, &c.name);
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
