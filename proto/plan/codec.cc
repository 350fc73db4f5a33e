// Each struct has one function Visit, which names its fields and their limits.
// Encoding and decoding both call Visit, so they agree.
#include "proto/plan/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "proto/base/status.h"
#include "proto/plan/json_reader.h"
#include "proto/plan/units.h"
#include "proto/plan/validate.h"

namespace sluice::plan {
namespace {

using nlohmann::json;

constexpr double kMaxSeconds = 1e9;
constexpr double kMaxRate = 1e15;  // a rate, in bytes per second
constexpr double kMaxReal = 1e300;
constexpr int64_t kMaxId = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxCount = int64_t{1} << 40;
// Copied bytes per layer grow with the square of the sequence length.
constexpr int64_t kMaxTraffic = int64_t{1} << 56;
// The limit of a sum over a trace, so that the sum is exact in int64.
constexpr int64_t kMaxTotal = int64_t{1} << 60;
constexpr size_t kMaxTextBytes = 1024;
// Written for a fraction that the profile leaves to the planner.
constexpr double kNotAsked = -1;

// Either reads or writes the fields of one JSON object. Writing neither changes
// nor checks the values.
class Fields {
 public:
  explicit Fields(FieldReader* in) : in_(in) {}
  explicit Fields(json* out) : out_(out) {}

  bool reads() const { return in_ != nullptr; }
  bool ok() const { return in_ == nullptr || in_->ok(); }
  // Returns whether to visit an optional field: when reading, if the object has
  // the field; when writing, if the field is `set`.
  bool Has(const char* key, bool set) const {
    return reads() ? in_->Has(key) : set;
  }
  void Refuse(const char* key, const std::string& complaint) {
    if (reads()) in_->Refuse(key, complaint);
  }

  void operator()(const char* key, int64_t& value, int64_t low, int64_t high) {
    Field(key, value, &FieldReader::Int, low, high);
  }
  void operator()(const char* key, Bytes& value, int64_t most = kMaxAmount) {
    int64_t count = value.count();
    (*this)(key, count, 0, most);
    if (reads()) value = Bytes(count);
  }
  template <typename Tag>
  void operator()(const char* key, Id<Tag>& id, int64_t most = kMaxId) {
    auto value = static_cast<int64_t>(id.value());
    (*this)(key, value, 0, most);
    if (reads()) id = Id<Tag>(static_cast<uint64_t>(value));
  }
  void operator()(const char* key, double& value, double low = 0,
                  double high = kMaxSeconds) {
    Field(key, value, &FieldReader::Number, low, high);
  }
  void operator()(const char* key, bool& value) {
    Field(key, value, &FieldReader::Flag);
  }
  void operator()(const char* key, std::string& value, size_t max_bytes) {
    Field(key, value, &FieldReader::Text, max_bytes);
  }
  void Choice(const char* key, std::string& value,
              std::initializer_list<std::string_view> choices) {
    Field(key, value, &FieldReader::Choice, choices);
  }
  void Name(std::string& name) {
    (*this)("name", name, kMaxNameBytes);
    if (name.empty()) Refuse("name", "is empty");
  }
  template <typename T>
  void Optional(const char* key, std::optional<T>& value, auto... limits) {
    if (!Has(key, value.has_value())) return;
    if (reads()) value.emplace();
    (*this)(key, *value, limits...);
  }

  void Object(const char* key, auto& value, auto visit) {
    if (!reads()) {
      Fields inner(&(*out_)[key]);
      return visit(inner, value);
    }
    FieldReader object = in_->Object(key);
    Fields inner(&object);
    visit(inner, value);
    object.Finish();
  }
  void Object(const char* key, auto& value) {
    Object(key, value, [](Fields& io, auto& inner) { Visit(io, inner); });
  }
  // Visits a list of objects, no two of which have the same name or rank.
  template <typename T>
  void Each(const char* key, size_t most, std::vector<T>& items, auto visit) {
    if (!reads()) {
      json& list = (*out_)[key] = json::array();
      for (T& item : items) {
        Fields inner(&list.emplace_back(json::object()));
        visit(inner, item);
      }
      return;
    }
    items.clear();
    std::set<std::string> seen;
    in_->Each(key, most, [&](FieldReader element, size_t) {
      Fields inner(&element);
      visit(inner, items.emplace_back());
      RefuseSecond(element, items.back(), seen);
      element.Finish();
    });
  }
  template <typename T>
  void Each(const char* key, size_t most, std::vector<T>& items) {
    Each(key, most, items, [](Fields& io, T& item) { Visit(io, item); });
  }
  // Visits a list of values that are no objects.
  template <typename T>
  void Values(const char* key, size_t most, std::vector<T>& values, auto write,
              auto read) {
    if (!reads()) {
      json& list = (*out_)[key] = json::array();
      for (const T& value : values) list.push_back(write(value));
      return;
    }
    in_->Each(key, most, [&](FieldReader element, size_t) {
      values.push_back(read(element));
    });
  }

 private:
  template <typename T, typename... Limits>
  void Field(const char* key, T& value,
             T (FieldReader::*read)(const char*, Limits...), Limits... limits) {
    if (reads()) {
      value = (in_->*read)(key, limits...);
    } else {
      (*out_)[key] = value;
    }
  }
  static void RefuseSecond(FieldReader& in, const auto& item,
                           std::set<std::string>& seen) {
    if constexpr (requires { item.job; }) {
      const std::string who =
          fmt::format("{} occurs twice in job {}", item.rank.value(), item.job);
      if (!seen.insert(who).second) in.Refuse("rank", who);
    } else if constexpr (requires { item.name; }) {
      std::string key = item.name, shown = item.name;
      if constexpr (requires { item.kind; }) {
        key = item.kind + '\0' + item.name;
        shown = FullName(item.kind, item.name);
      }
      if (!seen.insert(std::move(key)).second) {
        in.Refuse("name", fmt::format("'{}' occurs twice", shown));
      }
    }
  }

  FieldReader* in_ = nullptr;
  json* out_ = nullptr;
};

json WriteBuffer(const Buffer& b) {
  return {b.id, b.lower, b.upper, b.size.count()};
}

Buffer ReadBuffer(FieldReader& in, int64_t end) {
  Buffer buffer;
  if (in.Entries() != 4) {
    in.Refuse("", "is not [id, lower, upper, size]");
    return buffer;
  }
  buffer.id = in.At(0, "id", 0, kMaxId);
  buffer.lower = in.At(1, "lower", 0, kMaxTime);
  buffer.upper = in.At(2, "upper", 0, kMaxTime);
  buffer.size = Bytes(in.At(3, "size", 0, kMaxAmount));
  if (buffer.lower >= buffer.upper) {
    in.Refuse("upper", fmt::format("{} is not above lower = {}", buffer.upper,
                                   buffer.lower));
  }
  if (buffer.upper > end) {
    in.Refuse("upper", fmt::format("{} is beyond the trace's end = {}",
                                   buffer.upper, end));
  }
  return buffer;
}

void Visit(Fields& io, Trace& trace) {
  io("end", trace.end, 0, kMaxTime);
  int64_t alignment = trace.alignment.count();
  io("alignment", alignment, 1, int64_t{1} << 30);
  if ((alignment & (alignment - 1)) != 0) {
    io.Refuse("alignment", fmt::format("{} is no power of two", alignment));
  }
  if (io.reads()) trace.alignment = Bytes(alignment);
  std::set<int64_t> ids;
  int64_t total = 0;
  const auto read = [&](FieldReader& row) {
    const Buffer buffer = ReadBuffer(row, trace.end);
    if (!ids.insert(buffer.id).second) {
      row.Refuse("id", fmt::format("{} occurs twice", buffer.id));
    }
    total += RoundUp(buffer.size, trace.alignment).count();
    if (total > kMaxTotal) {
      row.Refuse("size", fmt::format("the trace's sizes sum to more than {}",
                                     kMaxTotal));
    }
    return buffer;
  };
  io.Values("buffers", kMaxBuffers, trace.buffers, WriteBuffer, read);
}

void Visit(Fields& io, Placement& placement) {
  io.Values(
      "offsets", kMaxBuffers, placement.offsets,
      [](Bytes offset) { return offset.count(); },
      [](FieldReader& in) { return Bytes(in.Self(0, kMaxTotal)); });
  io("peak", placement.peak, kMaxTotal);
  io("lower_bound", placement.lower_bound, placement.peak.count());
  io.Choice("proved_by", placement.proved_by,
            {"max_live", "search", "cbc", "none"});
  io("method", placement.method, kMaxNameBytes);
  io("seconds", placement.seconds);
}

void Visit(Fields& io, UnitPlan& unit) {
  io.Object("trace", unit.trace);
  io.Object("placement", unit.placement);
  if (!io.reads() || !io.ok()) return;
  if (unit.trace.buffers.size() > kMaxUnitBuffers) {
    return io.Refuse("trace",
                     fmt::format("{} buffers; the limit is {}",
                                 unit.trace.buffers.size(), kMaxUnitBuffers));
  }
  const absl::Status valid = ValidatePlacement(unit.trace, unit.placement);
  if (!valid.ok()) io.Refuse("placement", std::string(valid.message()));
}

// ---- Profiles --------------------------------------------------------------

void Visit(Fields& io, SegmentKind& segment) {
  io.Name(segment.name);
  io.Object("trace", segment.trace);
  io("seconds", segment.seconds);
  io("executions", segment.executions, 0, kMaxCount);
}

// Visits all fields of a kind except its name. Refuses more than `most` layers.
void VisitKind(Fields& io, LayerKind& kind, int64_t most) {
  io("layers", kind.layers, 1, most);
  io("resident_layers", kind.resident_layers, 0, kind.layers);
  io("forward_layer_seconds", kind.forward_layer_seconds);
  io("backward_layer_seconds", kind.backward_layer_seconds);
  io("forward_d2h_fixed", kind.forward_d2h_fixed, kMaxTraffic);
  io("forward_h2d_fixed", kind.forward_h2d_fixed, kMaxTraffic);
  io("backward_d2h_fixed", kind.backward_d2h_fixed, kMaxTraffic);
  io("backward_h2d_fixed", kind.backward_h2d_fixed, kMaxTraffic);
}

// If kOneKind is the rank's only kind, its fields stand among the rank's own,
// so that older programs, which know no kinds, can read the document.
void VisitKinds(Fields& io, std::vector<LayerKind>& kinds) {
  if (!io.Has("kinds", kinds.size() != 1 || kinds[0].name != kOneKind)) {
    return VisitKind(io, kinds[0], kMaxLayers);
  }
  int64_t left = kMaxLayers;
  io.Each("kinds", kMaxKinds, kinds, [&](Fields& each, LayerKind& kind) {
    each.Name(kind.name);
    VisitKind(each, kind, left);
    left -= kind.layers;
  });
  if (kinds.empty()) io.Refuse("kinds", "is empty");
}

// Visits the name of a class, and its kind unless the kind is kOneKind.
void VisitClassName(Fields& io, auto& of_class) {
  if (io.Has("kind", of_class.kind != kOneKind)) {
    io("kind", of_class.kind, kMaxNameBytes);
  }
  io.Name(of_class.name);
}

void VisitFraction(Fields& io, const char* key, double& fraction) {
  io(key, fraction, -1, 1);
  if (fraction < 0 && fraction != kNotAsked) {
    io.Refuse(key, fmt::format("{} is neither -1 (the planner chooses) "
                               "nor between 0 and 1",
                               fraction));
  }
}

void VisitAsked(Fields& io, const char* key, std::optional<double>& asked) {
  double fraction = asked.value_or(kNotAsked);
  VisitFraction(io, key, fraction);
  if (io.reads() && fraction >= 0) asked = fraction;
}

void Visit(Fields& io, SkeletalClass& skeletal) {
  VisitClassName(io, skeletal);
  io("bytes_per_layer", skeletal.bytes_per_layer);
  io("recompute_seconds", skeletal.recompute_seconds);
  io("must_swap", skeletal.must_swap);
  io("traffic_in_fixed", skeletal.traffic_in_fixed);
  io("shared", skeletal.shared);
  io("can_keep", skeletal.can_keep);
  VisitAsked(io, "keep", skeletal.given.keep);
  VisitAsked(io, "swap", skeletal.given.swap);
  io("why", skeletal.why, kMaxTextBytes);
}

void Visit(Fields& io, RankProfile& p) {
  io("job", p.job, 0, kMaxCount);
  io("rank", p.rank);
  io("gpu", p.gpu, kMaxCount);
  io("numa", p.numa, kMaxCount);
  VisitKinds(io, p.kinds);
  io.Each("segments", kMaxSegments, p.segments);
  io.Each("classes", kMaxClasses, p.classes,
          [&p](Fields& each, SkeletalClass& skeletal) {
            Visit(each, skeletal);
            if (!FindKind(p, skeletal.kind)) {
              each.Refuse("kind",
                          fmt::format("'{}' is no kind of this rank's layers",
                                      skeletal.kind));
            }
          });
  io("host_fixed", p.host_fixed);
  io.Optional("host_limit", p.host_limit);
  io("transient_capacity", p.transient_capacity);
  io("keep_reserve", p.keep_reserve);
  VisitFraction(io, "alpha", p.alpha);
  io("settled", p.settled);
  io.Choice("limited_by", p.limited_by,
            {"", "none", "bandwidth", "host", "flag"});
}

void Visit(Fields& io, std::vector<RankProfile>& profiles) {
  io.Each("profiles", kMaxRanks, profiles);
}

// ---- Requests --------------------------------------------------------------

// Visits distinct positions below `count`.
void VisitPositions(Fields& io, std::vector<size_t>& positions, size_t count) {
  io.Values(
      "profiles", kMaxRanks, positions, [](size_t at) { return at; },
      [&](FieldReader& in) {
        const auto most = static_cast<int64_t>(count) - 1;
        const auto at = static_cast<size_t>(in.Self(0, most));
        if (std::ranges::count(positions, at) > 0) {
          in.Refuse("", fmt::format("{} occurs twice", at));
        }
        return at;
      });
}

void Visit(Fields& io, PlanRequest& request) {
  Visit(io, request.profiles);
  const size_t count = request.profiles.size();
  io.Object("resources", request.resources,
            [count](Fields& in, NodeResources& resources) {
              in.Each("links", kMaxRanks, resources.links,
                      [count](Fields& each, LinkCapacity& link) {
                        each.Name(link.name);
                        each("h2d_bytes_per_second", link.h2d_bytes_per_second,
                             1, kMaxRate);
                        each("d2h_bytes_per_second", link.d2h_bytes_per_second,
                             1, kMaxRate);
                        each.Optional("both_bytes_per_second",
                                      link.both_bytes_per_second, 1, kMaxRate);
                        VisitPositions(each, link.profiles, count);
                      });
              in.Each("hosts", 2 * kMaxRanks, resources.hosts,
                      [count](Fields& each, HostLimit& host) {
                        each.Name(host.name);
                        each("bytes", host.bytes);
                        VisitPositions(each, host.profiles, count);
                      });
            });
  io.Each("known", kMaxUnits, request.known);
}

// ---- Plans -----------------------------------------------------------------

void Visit(Fields& io, SegmentPlan& segment) {
  io.Name(segment.name);
  io("base", segment.base, kMaxTotal);
  io.Object("placement", segment.placement);
}

void Visit(Fields& io, ClassPlan& c) {
  VisitClassName(io, c);
  io("keep", c.fractions.keep, 0, 1);
  io("swap", c.fractions.swap, 0, 1);
  io("recompute", c.fractions.recompute, 0, 1);
  const double sum =
      c.fractions.keep + c.fractions.swap + c.fractions.recompute;
  if (sum < 1 - 1e-9 || sum > 1 + 1e-9) {
    io.Refuse("keep", fmt::format("keep + swap + recompute is {}, not 1", sum));
  }
  io("why", c.why, kMaxTextBytes);
}

void Visit(Fields& io, RankPlan& plan) {
  io("job", plan.job, 0, kMaxCount);
  io("rank", plan.rank);
  io.Each("segments", kMaxSegments, plan.segments);
  io("transient_peak", plan.transient_peak, kMaxTotal);
  io.Each("classes", kMaxClasses, plan.classes);
  io("alpha", plan.alpha, 0, 1);
  io.Choice("alpha_limited_by", plan.alpha_limited_by,
            {"none", "bandwidth", "host", "flag"});
  io("host_bytes", plan.host_bytes, kMaxTotal);
}

void Visit(Fields& io, PlanLimit& limit) {
  io("what", limit.what, kMaxTextBytes);
  io("used", limit.used, 0, kMaxReal);
  io("capacity", limit.capacity, 0, kMaxReal);
  io.Choice("unit", limit.unit, {"bytes", "bytes_per_second"});
  io("binds", limit.binds);
  io("one_more_step_seconds", limit.one_more_step_seconds, -kMaxSeconds);
  io("one_more_recompute_seconds", limit.one_more_recompute_seconds,
     -kMaxSeconds);
}

void Visit(Fields& io, NodePlan& plan) {
  io("id", plan.id);
  const std::string& hash = plan.profile_hash;
  io("profile_hash", plan.profile_hash, 32);
  if (hash.size() != 32 ||
      hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    io.Refuse("profile_hash",
              fmt::format("'{}' is not 32 hexadecimal digits", hash));
  }
  io.Each("ranks", kMaxRanks, plan.ranks);
  io("seconds", plan.seconds);
  io("infeasible", plan.infeasible, 4096);
  io.Choice("limited_by", plan.limited_by,
            {"none", "gpu_memory", "host_memory"});
  io.Each("limits", 8 * kMaxRanks, plan.limits);
  io("units_solved", plan.units_solved, 0, kMaxCount);
  io("units_known", plan.units_known, 0, kMaxCount);
}

// ---- Documents -------------------------------------------------------------

// The kind of a document, so that decoding cannot mistake one for another.
const char* FormatOf(const RankProfile&) { return "sluice.rank_profile"; }
const char* FormatOf(const std::vector<RankProfile>&) {
  return "sluice.rank_profiles";
}
const char* FormatOf(const PlanRequest&) { return "sluice.plan_request"; }
const char* FormatOf(const NodePlan&) { return "sluice.node_plan"; }

template <typename T>
std::string EncodeAny(const T& value) {
  json document;
  Fields io(&document);
  Visit(io, const_cast<T&>(value));  // writing changes nothing
  document["format"] = FormatOf(value);
  document["version"] = kFormatVersion;
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

template <typename T>
absl::StatusOr<T> DecodeAny(std::string_view bytes) {
  T value;
  const char* const format = FormatOf(value);
  absl::Status status;
  const json document = ParseChecked(bytes, kMaxEncodedBytes, &status);
  FieldReader in(document, "", &status);
  in.Choice("format", {format});
  in.Int("version", kFormatVersion, kFormatVersion);
  if (status.ok()) {
    Fields io(&in);
    Visit(io, value);
    in.Finish();
  }
  if (!status.ok()) return Annotate(status, format);
  return value;
}

}  // namespace

std::string Encode(const RankProfile& profile) { return EncodeAny(profile); }

std::string Encode(const std::vector<RankProfile>& profiles) {
  return EncodeAny(profiles);
}

std::string Encode(const PlanRequest& request) { return EncodeAny(request); }

std::string Encode(const NodePlan& plan) { return EncodeAny(plan); }

absl::StatusOr<RankProfile> DecodeRankProfile(std::string_view bytes) {
  return DecodeAny<RankProfile>(bytes);
}

absl::StatusOr<std::vector<RankProfile>> DecodeProfiles(
    std::string_view bytes) {
  return DecodeAny<std::vector<RankProfile>>(bytes);
}

absl::StatusOr<PlanRequest> DecodePlanRequest(std::string_view bytes) {
  return DecodeAny<PlanRequest>(bytes);
}

absl::StatusOr<NodePlan> DecodeNodePlan(std::string_view bytes) {
  return DecodeAny<NodePlan>(bytes);
}

std::string HashProfiles(const std::vector<RankProfile>& profiles) {
  return HashBytes(Encode(profiles));
}

}  // namespace sluice::plan
