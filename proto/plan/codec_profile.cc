// Encodes and decodes profiles as JSON (codec.h).
#include <fmt/format.h>

#include <optional>

#include "proto/plan/codec_parts.h"

namespace sluice::plan {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTraffic = int64_t{1} << 56;
// Written for a fraction that the profile leaves to the planner.
constexpr double kNotAsked = -1;

// ---- Writing ---------------------------------------------------------------

json Write(const SegmentKind& segment) {
  return {{"name", segment.name},
          {"trace", Write(segment.trace)},
          {"seconds", segment.seconds},
          {"executions", segment.executions}};
}

json Write(const LayerKind& kind) {
  return {{"name", kind.name},
          {"layers", kind.layers},
          {"resident_layers", kind.resident_layers},
          {"forward_layer_seconds", kind.forward_layer_seconds},
          {"backward_layer_seconds", kind.backward_layer_seconds},
          {"forward_d2h_fixed", kind.forward_d2h_fixed.count()},
          {"forward_h2d_fixed", kind.forward_h2d_fixed.count()},
          {"backward_d2h_fixed", kind.backward_d2h_fixed.count()},
          {"backward_h2d_fixed", kind.backward_h2d_fixed.count()}};
}

// A rank with one unnamed kind of layers writes that kind's fields among its
// own, which is also the older format.
void WriteKinds(const RankProfile& p, json* profile) {
  if (p.kinds.size() != 1 || p.kinds[0].name != kOneKind) {
    (*profile)["kinds"] = WriteAll(p.kinds, Write);
    return;
  }
  json kind = Write(p.kinds[0]);
  kind.erase("name");
  profile->update(kind);
}

json Write(const SkeletalClass& skeletal) {
  json c = {{"name", skeletal.name},
            {"bytes_per_layer", skeletal.bytes_per_layer.count()},
            {"recompute_seconds", skeletal.recompute_seconds},
            {"must_swap", skeletal.must_swap},
            {"traffic_in_fixed", skeletal.traffic_in_fixed},
            {"shared", skeletal.shared},
            {"can_keep", skeletal.can_keep},
            {"keep", skeletal.given.keep.value_or(kNotAsked)},
            {"swap", skeletal.given.swap.value_or(kNotAsked)},
            {"why", skeletal.why}};
  WriteKindName(skeletal.kind, &c);
  return c;
}

// ---- Reading ---------------------------------------------------------------

// Reads copied bytes per layer, which grow with the square of the sequence
// length.
Bytes ReadTraffic(FieldReader& in, const char* key) {
  return Bytes(in.Int(key, 0, kMaxTraffic));
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

// Reads a fraction in [0, 1], or -1 if the planner chooses it.
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

// Reads all fields of a kind of at most `most` layers, except its name.
LayerKind ReadKindFields(FieldReader& in, int64_t most) {
  LayerKind kind;
  kind.layers = in.Int("layers", 1, most);
  kind.resident_layers = in.Int("resident_layers", 0, kind.layers);
  kind.forward_layer_seconds =
      in.Number("forward_layer_seconds", 0, kMaxSeconds);
  kind.backward_layer_seconds =
      in.Number("backward_layer_seconds", 0, kMaxSeconds);
  kind.forward_d2h_fixed = ReadTraffic(in, "forward_d2h_fixed");
  kind.forward_h2d_fixed = ReadTraffic(in, "forward_h2d_fixed");
  kind.backward_d2h_fixed = ReadTraffic(in, "backward_d2h_fixed");
  kind.backward_h2d_fixed = ReadTraffic(in, "backward_h2d_fixed");
  return kind;
}

std::vector<LayerKind> ReadKinds(FieldReader& in) {
  if (!in.Has("kinds")) return {ReadKindFields(in, kMaxLayers)};
  std::vector<LayerKind> kinds;
  std::set<std::string> names;
  int64_t left = kMaxLayers;
  in.Each("kinds", kMaxKinds, [&](FieldReader element, size_t) {
    std::string name = ReadName(element, &names);
    kinds.push_back(ReadKindFields(element, left));
    kinds.back().name = std::move(name);
    left -= kinds.back().layers;
    element.Finish();
  });
  if (in.ok() && kinds.empty()) in.Refuse("kinds", "is empty");
  return kinds;
}

SkeletalClass ReadSkeletalClass(FieldReader in, const RankProfile& profile,
                                std::set<std::string>* names) {
  SkeletalClass skeletal;
  ReadClassName(in, names, &skeletal.kind, &skeletal.name);
  if (in.ok() && !FindKind(profile, skeletal.kind)) {
    in.Refuse("kind", fmt::format("'{}' is no kind of this rank's layers",
                                  skeletal.kind));
  }
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

}  // namespace

json Write(const RankProfile& p) {
  json profile = {{"job", p.job},
                  {"rank", p.rank.value()},
                  {"gpu", p.gpu.value()},
                  {"numa", p.numa.value()},
                  {"segments", WriteAll(p.segments, Write)},
                  {"classes", WriteAll(p.classes, Write)},
                  {"host_fixed", p.host_fixed.count()},
                  {"transient_capacity", p.transient_capacity.count()},
                  {"keep_reserve", p.keep_reserve.count()},
                  {"alpha", p.alpha},
                  {"settled", p.settled},
                  {"limited_by", p.limited_by}};
  if (p.host_limit.has_value()) {
    profile["host_limit"] = p.host_limit->count();
  }
  WriteKinds(p, &profile);
  return profile;
}

RankProfile ReadRankProfile(FieldReader& in) {
  RankProfile p;
  p.job = in.Int("job", 0, kMaxCount);
  p.rank = Rank(in.Int("rank", 0, kMaxId));
  p.gpu = DeviceIndex(in.Int("gpu", 0, kMaxCount));
  p.numa = NumaIndex(in.Int("numa", 0, kMaxCount));
  p.kinds = ReadKinds(in);
  std::set<std::string> segments;
  in.Each("segments", kMaxSegments, [&](FieldReader element, size_t) {
    p.segments.push_back(ReadSegmentKind(element, &segments));
  });
  std::set<std::string> classes;
  in.Each("classes", kMaxClasses, [&](FieldReader element, size_t) {
    p.classes.push_back(ReadSkeletalClass(element, p, &classes));
  });
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

}  // namespace sluice::plan
