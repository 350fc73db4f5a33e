#include "proto/plan/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::plan {
namespace {

// More bytes than any memory has: the copies of a layer of ten million tokens
// in small chunks.
constexpr Bytes kManyCopies = GiB(int64_t{1} << 21);

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

RankProfile SampleProfile(uint64_t rank) {
  RankProfile p;
  p.rank = Rank(rank);
  p.gpu = DeviceIndex(1);
  p.numa = NumaIndex(0);
  p.kinds[0].layers = 4;
  p.kinds[0].resident_layers = 1;
  p.segments.push_back(
      {.name = "qkv.forward.full",
       .trace = {.buffers = {{0, 0, 3, Bytes(4096)}, {1, 1, 2, Bytes(100)}},
                 .end = 3,
                 .alignment = Bytes(64)},
       .seconds = 0.1,
       .executions = 32});
  p.classes.push_back({.name = "layer_input",
                       .bytes_per_layer = MiB(1),
                       .recompute_seconds = 0,
                       .must_swap = true});
  p.classes.push_back({.name = "ffn_up",
                       .bytes_per_layer = MiB(4),
                       .recompute_seconds = 1.0 / 3,
                       .can_keep = true,
                       .given = {.keep = 0.125},
                       .why = "it was \"free\""});
  p.kinds[0].forward_layer_seconds = 0.9;
  p.kinds[0].backward_layer_seconds = 2.1;
  p.kinds[0].forward_d2h_fixed = KiB(1);
  p.kinds[0].forward_h2d_fixed = KiB(2);
  p.kinds[0].backward_d2h_fixed = KiB(3);
  p.kinds[0].backward_h2d_fixed = kManyCopies;
  p.host_fixed = KiB(5);
  if (rank == 1) p.host_limit = MiB(300);
  p.transient_capacity = MiB(30);
  p.keep_reserve = KiB(6);
  return p;
}

PlanRequest SampleRequest() {
  return {.profiles = {SampleProfile(0), SampleProfile(1)},
          .resources = {.links = {{.name = "pcie0",
                                   .h2d_bytes_per_second = 2e9,
                                   .d2h_bytes_per_second = 1e9,
                                   .profiles = {0, 1}},
                                  {.name = "memory",
                                   .h2d_bytes_per_second = 3e9,
                                   .d2h_bytes_per_second = 3e9,
                                   .profiles = {1},
                                   .both_bytes_per_second = 3e9}},
                        .hosts = {{.name = "host of NUMA node 0",
                                   .bytes = MiB(384),
                                   .profiles = {1}}}}};
}

NodePlan SamplePlan() {
  NodePlan plan;
  plan.id = PlanId(7);
  plan.profile_hash = "0123456789abcdef0123456789abcdef";
  plan.ranks.push_back(
      {.rank = Rank(0),
       .segments = {{.name = "qkv.forward.full",
                     .base = Bytes(64),
                     .placement = {.offsets = {Bytes(0), Bytes(4096)},
                                   .peak = Bytes(4224),
                                   .lower_bound = Bytes(4224),
                                   .proved_by = "max_live",
                                   .method = "greedy:size",
                                   .seconds = 0.25}}},
       .transient_peak = Bytes(4288),
       .classes = {{"ffn_up", {0, 0.25, 0.75}, ""}},
       .alpha = 0.25,
       .alpha_limited_by = "host",
       .host_bytes = MiB(77)});
  plan.seconds = 0.5;
  return plan;
}

// Compares the encoded bytes instead of each field. ExpectEveryFieldIsChecked
// shows that the decoder reads each field of the encoding.
TEST(PlanCodec, EverythingSurvivesARoundTrip) {
  PlanRequest request = SampleRequest();
  request.profiles[1].segments[0].trace.alignment = Bytes(1);  // the smallest
  const auto decoded = DecodePlanRequest(Encode(request));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Encode(*decoded), Encode(request));
  EXPECT_EQ(decoded->profiles[1].classes[1].recompute_seconds, 1.0 / 3);
  EXPECT_EQ(decoded->profiles[0].segments[0].trace.buffers[1].size, Bytes(100));
  EXPECT_EQ(decoded->profiles[1].kinds[0].backward_h2d_fixed, kManyCopies);
  EXPECT_EQ(decoded->profiles[1].alpha, -1);
  EXPECT_EQ(decoded->profiles[1].classes[1].given.keep, 0.125);
  EXPECT_EQ(decoded->profiles[1].classes[1].given.swap, std::nullopt);
  EXPECT_EQ(decoded->resources.links[0].profiles[1], 1u);
  EXPECT_EQ(decoded->resources.hosts[0].bytes, MiB(384));

  const NodePlan plan = SamplePlan();
  const auto decoded_plan = DecodeNodePlan(Encode(plan));
  ASSERT_TRUE(decoded_plan.ok()) << decoded_plan.status();
  EXPECT_EQ(Encode(*decoded_plan), Encode(plan));
  EXPECT_EQ(decoded_plan->ranks[0].segments[0].placement.offsets[1],
            Bytes(4096));
  EXPECT_EQ(decoded_plan->ranks[0].alpha_limited_by, "host");
  EXPECT_TRUE(decoded_plan->ranks[0].segments[0].placement.optimal());
}

TEST(PlanCodec, OneProfileAndAListSurviveARoundTrip) {
  const RankProfile one = SampleProfile(3);
  const auto decoded = DecodeRankProfile(Encode(one));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Encode(*decoded), Encode(one));
  const std::vector<RankProfile> list = {SampleProfile(0), SampleProfile(1)};
  const auto decoded_list = DecodeProfiles(Encode(list));
  ASSERT_TRUE(decoded_list.ok()) << decoded_list.status();
  EXPECT_EQ(Encode(*decoded_list), Encode(list));
}

// Returns a request with two kinds of layers, each with a class "ffn_up".
PlanRequest SampleOfKinds() {
  PlanRequest request = SampleRequest();
  RankProfile& p = request.profiles[0];
  p.kinds[0].name = "dense";
  p.kinds.push_back(p.kinds[0]);
  p.kinds[1].name = "moe";
  p.kinds[1].layers = 7;
  for (SkeletalClass& c : p.classes) c.kind = "dense";
  p.classes.push_back(p.classes[1]);
  p.classes[2].kind = "moe";
  return request;
}

TEST(PlanCodec, KindsOfLayersSurviveARoundTrip) {
  const PlanRequest request = SampleOfKinds();
  const auto decoded = DecodePlanRequest(Encode(request));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Encode(*decoded), Encode(request));
  const RankProfile& p = decoded->profiles[0];
  ASSERT_EQ(p.kinds.size(), 2u);
  EXPECT_EQ(p.kinds[1].name, "moe");
  EXPECT_EQ(KindOf(p, p.classes[2]).layers, 7);
  NodePlan plan = SamplePlan();
  plan.ranks[0].classes.push_back({"ffn_up", {0, 1, 0}, "", "moe"});
  const auto decoded_plan = DecodeNodePlan(Encode(plan));
  ASSERT_TRUE(decoded_plan.ok()) << decoded_plan.status();
  EXPECT_EQ(Encode(*decoded_plan), Encode(plan));
  EXPECT_EQ(decoded_plan->ranks[0].classes[1].kind, "moe");
}

// Older programs know no kinds, so the encoding of a single kind has no name.
TEST(PlanCodec, WithOneKindOfLayersNoKindsAreWritten) {
  const json document = json::parse(Encode(SampleRequest()));
  const json& profile = document["profiles"][0];
  EXPECT_FALSE(profile.contains("kinds"));
  EXPECT_EQ(profile["layers"], 4);
  EXPECT_FALSE(profile["classes"][0].contains("kind"));
  const json plan = json::parse(Encode(SamplePlan()));
  EXPECT_FALSE(plan["ranks"][0]["classes"][0].contains("kind"));
  const auto decoded = DecodePlanRequest(Encode(SampleRequest()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->profiles[0].kinds.size(), 1u);
  EXPECT_EQ(decoded->profiles[0].kinds[0].name, kOneKind);
}

TEST(PlanCodec, AProfileIsNotReadAsAPlan) {
  const auto wrong = DecodeNodePlan(Encode(SampleProfile(0)));
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(std::string(wrong.status().message()),
              HasSubstr("'sluice.rank_profile' is none of "
                        "'sluice.node_plan'"));
}

TEST(PlanCodec, TheHashIsStableAndChangesWithASize) {
  const std::vector<RankProfile> profiles = {SampleProfile(0)};
  EXPECT_EQ(HashProfiles(profiles), HashProfiles(profiles));
  EXPECT_EQ(HashProfiles({}).size(), 32u);
  std::vector<RankProfile> other = profiles;
  other[0].segments[0].trace.buffers[1].size = Bytes(101);
  EXPECT_NE(HashProfiles(profiles), HashProfiles(other));
}

// ---- Refusals --------------------------------------------------------------

// Appends the path of every value below `at`, objects and lists included.
void CollectPaths(const json& value, const json::json_pointer& at,
                  std::vector<json::json_pointer>* out) {
  if (!at.empty()) out->push_back(at);
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) {
      CollectPaths(child, at / key, out);
    }
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      CollectPaths(value[i], at / i, out);
    }
  }
}

// Fields that may be missing: a rank's limit of host memory, and a link's speed
// limit for both directions together.
const std::set<std::string> kOptional = {"host_limit", "both_bytes_per_second"};

template <typename DecodeFn>
void ExpectEveryFieldIsChecked(const std::string& good, DecodeFn decode) {
  const json document = json::parse(good);
  ASSERT_TRUE(decode(good).ok()) << decode(good).status();
  std::vector<json::json_pointer> paths;
  CollectPaths(document, json::json_pointer(), &paths);
  ASSERT_GT(paths.size(), 20u);
  for (const auto& path : paths) {
    json broken = document;
    broken[path] = nullptr;
    auto result = decode(broken.dump());
    ASSERT_FALSE(result.ok()) << path << " null was taken";
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()), Not(HasSubstr("\n")));
    if (!document[path.parent_pointer()].is_object()) continue;
    broken = document;
    broken[path.parent_pointer()].erase(path.back());
    result = decode(broken.dump());
    if (kOptional.contains(path.back())) {
      EXPECT_TRUE(result.ok()) << result.status();
    } else {
      ASSERT_FALSE(result.ok()) << path << " may be left out";
      EXPECT_THAT(std::string(result.status().message()),
                  HasSubstr(path.back() + ": is missing"));
    }
    broken = document;
    broken[path.parent_pointer()][path.back() + "_x"] = 1;
    result = decode(broken.dump());
    ASSERT_FALSE(result.ok()) << path << "_x was taken";
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr("unknown field"));
  }
}

TEST(PlanCodec, ARequestWithAMissingMistypedOrUnknownFieldIsRefused) {
  ExpectEveryFieldIsChecked(Encode(SampleRequest()), DecodePlanRequest);
}

TEST(PlanCodec, AKindWithoutLayersIsRefused) {
  json document = json::parse(Encode(SampleOfKinds()));
  for (const char* key : {"kinds", "layers"}) {
    json broken = document;
    if (key == std::string("kinds")) {
      broken["profiles"][0].erase(key);  // then `layers` is required
    } else {
      broken["profiles"][0]["kinds"][1].erase(key);
    }
    const auto result = DecodePlanRequest(broken.dump());
    ASSERT_FALSE(result.ok()) << key;
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr("layers: is missing"));
  }
}

TEST(PlanCodec, APlanWithAMissingMistypedOrUnknownFieldIsRefused) {
  ExpectEveryFieldIsChecked(Encode(SamplePlan()), DecodeNodePlan);
}

struct Bad {
  const char* pointer;
  json value;
  const char* message;
};

template <typename DecodeFn>
void ExpectRefused(const std::string& good, const std::vector<Bad>& cases,
                   DecodeFn decode) {
  for (const Bad& bad : cases) {
    json document = json::parse(good);
    document[json::json_pointer(bad.pointer)] = bad.value;
    const auto result = decode(document.dump());
    ASSERT_FALSE(result.ok()) << bad.pointer << " = " << bad.value;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(bad.message))
        << bad.pointer;
  }
}

TEST(PlanCodec, ValuesOutOfRangeAreRefusedWithFieldValueAndLimit) {
  const std::string p = "/profiles/0";
  ExpectRefused(
      Encode(SampleRequest()),
      {{"/version", 1, "version: 1 is not between 2 and 2"},
       {"/profiles/0/layers", 0, "profiles[0].layers: 0 is not between 1"},
       {"/profiles/0/resident_layers", 5, "5 is not between 0 and 4"},
       {"/profiles/0/layers", 1.5, "1.5 is not a whole number"},
       {"/profiles/0/layers", 18446744073709551615u, "is not between 1"},
       {"/profiles/1/rank", 0, "profiles[1].rank: 0 occurs twice in job 0"},
       {"/profiles/0/job", -1, "profiles[0].job: -1 is not between 0"},
       {"/profiles/0/classes/1/keep", -0.5, "-0.5 is neither -1"},
       {"/profiles/0/classes/1/swap", 1.5, "1.5 is not between -1 and 1"},
       {"/profiles/0/limited_by", "luck", "'luck' is none of"},
       {"/profiles/0/alpha", -0.5, "-0.5 is neither -1"},
       {"/profiles/0/alpha", 1.01, "1.01 is not between -1 and 1"},
       {"/profiles/0/forward_layer_seconds", -1, "-1 is not between 0"},
       {"/profiles/0/host_fixed", -1, "host_fixed: -1 is not between 0"},
       {"/profiles/0/classes/1/name", "layer_input", "occurs twice"},
       {"/profiles/0/classes/1/name", "", "name: is empty"},
       {"/profiles/0/classes/1/name", "a\nb", "control character"},
       {"/profiles/0/classes/1/name", std::string(300, 'x'), "limit is 256"},
       {"/profiles/0/classes/1/must_swap", 1, "1 is not true or false"},
       {"/profiles/0/segments/0/trace/alignment", 48, "48 is no power of two"},
       {"/profiles/0/segments/0/trace/buffers/1/1", 2,
        "buffers[1].upper: 2 is not above lower = 2"},
       {"/profiles/0/segments/0/trace/buffers/1/2", 4,
        "4 is beyond the trace's end = 3"},
       {"/profiles/0/segments/0/trace/buffers/1/3", -5,
        "buffers[1].size: -5 is not between 0"},
       {"/profiles/0/segments/0/trace/buffers/1/0", 0, "id: 0 occurs twice"},
       {"/profiles/0/segments/0/trace/buffers/1",
        {1, 2, 3},
        "is not [id, lower, upper, size]"},
       {"/profiles/0/segments/0/trace/buffers", 3, "is not a list"},
       {"/resources/links/0/h2d_bytes_per_second", 0, "0 is not between 1"},
       {"/resources/links/1/both_bytes_per_second", 0, "0 is not between 1"},
       {"/resources/hosts/0/bytes", -2, "hosts[0].bytes: -2 is not between"},
       {"/resources/hosts/0/profiles/0", 2, "profiles[0]: 2 is not between 0"},
       {"/resources/links/0/profiles/1", 0, "profiles[1]: 0 occurs twice"},
       {"/resources/links/0", 3, "links[0]: 3 is not an object"}},
      DecodePlanRequest);
}

// Returns a unit of `buffers` buffers that use the same place in turn.
UnitPlan LongUnit(size_t buffers) {
  UnitPlan unit;
  for (size_t i = 0; i < buffers; ++i) {
    const auto at = static_cast<int64_t>(i);
    unit.trace.buffers.push_back({at, at, at + 1, Bytes(64)});
  }
  unit.trace.end = static_cast<int64_t>(buffers);
  unit.placement = {.offsets = std::vector<Bytes>(buffers),
                    .peak = Bytes(64),
                    .lower_bound = Bytes(64),
                    .proved_by = "max_live",
                    .method = "greedy:size"};
  return unit;
}

TEST(PlanCodec, KnownUnitsOfARequestAreChecked) {
  const auto refusal = [](const UnitPlan& unit) {
    PlanRequest request = SampleRequest();
    request.known = {unit};
    const auto read = DecodePlanRequest(Encode(request));
    if (read.ok()) {
      EXPECT_EQ(Encode(*read), Encode(request));
    }
    return std::string(read.status().message());
  };
  EXPECT_EQ(refusal(LongUnit(kMaxUnitBuffers)), "");
  EXPECT_THAT(refusal(LongUnit(kMaxUnitBuffers + 1)),
              HasSubstr("known[0].trace: 4097 buffers"));
  UnitPlan unit = LongUnit(2);
  unit.trace.buffers[0].upper = 2;
  EXPECT_THAT(refusal(unit), HasSubstr("known[0].placement: "));
}

TEST(PlanCodec, TheSumOfATracesSizesIsLimited) {
  const auto refusal = [](size_t buffers) {
    RankProfile profile = SampleProfile(0);
    Trace& trace = profile.segments[0].trace;
    trace = LongUnit(buffers).trace;
    for (Buffer& buffer : trace.buffers) buffer.size = Bytes(int64_t{1} << 50);
    return std::string(DecodeRankProfile(Encode(profile)).status().message());
  };
  EXPECT_EQ(refusal(1024), "");
  EXPECT_THAT(refusal(1025), HasSubstr("trace.buffers[1024].size: "));
}

TEST(PlanCodec, KindsOutOfRangeAreRefusedWithFieldValueAndLimit) {
  json many = json::array();
  const json kind =
      json::parse(Encode(SampleOfKinds()))["profiles"][0]["kinds"][0];
  for (int i = 0; i < 65; ++i) {
    many.push_back(kind);
    many.back()["name"] = std::to_string(i);
  }
  ExpectRefused(
      Encode(SampleOfKinds()),
      {{"/profiles/0/kinds/1/layers", 0,
        "profiles[0].kinds[1].layers: 0 is not between 1"},
       {"/profiles/0/kinds/1/layers", (1 << 20) - 3,
        "1048573 is not between 1 and 1048572"},  // 2^20 layers in all
       {"/profiles/0/kinds/1/resident_layers", 8, "8 is not between 0 and 7"},
       {"/profiles/0/kinds/1/backward_h2d_fixed", -1, "-1 is not between 0"},
       {"/profiles/0/kinds/1/name", "dense", "'dense' occurs twice"},
       {"/profiles/0/kinds/1/name", "", "kinds[1].name: is empty"},
       {"/profiles/0/kinds/1/colour", 1, "unknown field"},
       {"/profiles/0/kinds", json::array(), "kinds: is empty"},
       {"/profiles/0/kinds", many, "has 65 entries; the limit is 64"},
       {"/profiles/0/layers", 4, "unknown field"},
       {"/profiles/0/classes/2/kind", "dense", "'dense/ffn_up' occurs twice"},
       {"/profiles/0/classes/2/kind", "wide",
        "classes[2].kind: 'wide' is no kind of this rank's layers"}},
      DecodePlanRequest);
  json plan = json::parse(Encode(SamplePlan()));
  json& classes = plan["ranks"][0]["classes"];
  classes.push_back(classes[0]);
  EXPECT_FALSE(DecodeNodePlan(plan.dump()).ok());
  classes[1]["kind"] = "moe";
  EXPECT_TRUE(DecodeNodePlan(plan.dump()).ok());
}

TEST(PlanCodec, PlansOutOfRangeAreRefusedWithFieldValueAndLimit) {
  const json rank = json::parse(Encode(SamplePlan()))["ranks"][0];
  ExpectRefused(
      Encode(SamplePlan()),
      {{"/ranks", {rank, rank}, "ranks[1].rank: 0 occurs twice in job 0"},
       {"/profile_hash", "xyz", "not 32 hexadecimal digits"},
       {"/ranks/0/alpha", 1.5, "ranks[0].alpha: 1.5 is not between 0 and 1"},
       {"/ranks/0/alpha_limited_by", "luck", "'luck' is none of 'none'"},
       {"/ranks/0/classes/0/swap", 0.5, "keep + swap + recompute is 1.25"},
       {"/ranks/0/segments/0/base", -64, "base: -64 is not between 0"},
       {"/ranks/0/segments/0/placement/lower_bound", 5000,
        "5000 is not between 0 and 4224"},
       {"/ranks/0/segments/0/placement/offsets/0", -1,
        "offsets[0]: -1 is not between 0"},
       {"/ranks/0/segments/0/placement/proved_by", "hope", "is none of"}},
      DecodeNodePlan);
}

TEST(PlanCodec, TextThatIsNotJsonIsRefusedInOneLine) {
  const std::string good = Encode(SamplePlan());
  for (const std::string& bytes :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"),
        good.substr(0, good.size() / 2), good + "x", std::string("\xff\xfe"),
        std::string("{\"a\":1,\"a\":2}"), std::string(100000, '['),
        std::string("{\"version\":NaN}"), std::string("{\"version\":1e999}")}) {
    const auto result = DecodeNodePlan(bytes);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()), Not(HasSubstr("\n")));
    EXPECT_LT(result.status().message().size(), 300u);
  }
}

TEST(PlanCodec, ARepeatedKeyIsRefused) {
  std::string twice = Encode(SamplePlan());
  twice.insert(1, "\"seconds\":1,");
  const auto result = DecodeNodePlan(twice);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("key \"seconds\" occurs twice"));
}

// Changes each byte to seven other values, then removes it.
TEST(PlanCodec, ADamagedRequestDoesNotCrashTheDecoder) {
  const std::string good = Encode(SampleRequest());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'\0', '9', '-', '"', '{', ']', 'e'}) {
      std::string damaged = good;
      damaged[i] = c;
      (void)DecodePlanRequest(damaged);
    }
    std::string cut = good;
    cut.erase(i, 1);
    (void)DecodePlanRequest(cut);
  }
}

}  // namespace
}  // namespace sluice::plan
