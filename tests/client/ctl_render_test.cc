// Tests sluicectl's output, in part against golden/. After an intended change,
// run this test with SLUICE_UPDATE_GOLDEN=1 and review the difference.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"
#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "tests/support/golden.h"
#include "tests/support/status_matchers.h"
#include "tests/support/whole_lines.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;
using ::sluice::testing::StatusIs;
using ::sluice::testing::WholeLines;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::string& name) {
  std::ifstream file(InTree("tests/client/golden/" + name));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << name;
  return text.str();
}

void ExpectGolden(const std::string& text, const std::string& name) {
  testing::ExpectGolden(text, "tests/client/golden/" + name);
}

plan::NodePlan SamplePlan() {
  plan::NodePlan plan;
  plan.id = PlanId(7);
  plan.profile_hash = "00112233445566778899aabbccddeeff";
  plan.seconds = 0.81;
  plan::RankPlan rank;
  rank.rank = Rank(0);
  rank.alpha = 0.75;
  rank.alpha_limited_by = "bandwidth";
  rank.transient_peak = MiB(9);
  rank.host_bytes = MiB(96);
  rank.classes = {
      {"layer_input", {0, 1, 0}, "swapped whole: backward needs it"},
      {"ffn_up", {0.125, 0.75, 0.125}, "75 % swapped: link pcie0 d2h is full"}};
  plan::SegmentPlan segment;
  segment.name = "block.offdiagonal.backward.full";
  segment.base = MiB(1);
  segment.placement = {.offsets = {Bytes(0), MiB(4)},
                       .peak = MiB(8),
                       .lower_bound = MiB(8),
                       .proved_by = "max_live",
                       .method = "greedy:size"};
  plan::SegmentPlan hard = segment;
  hard.name = "loss";
  hard.placement.lower_bound = MiB(7);
  hard.placement.proved_by = "none";
  rank.segments = {segment, hard};
  plan.limits = {
      {"link pcie0 d2h", 25e9, 25e9, "bytes_per_second", true, 0.25, 0.5},
      {"host of NUMA node 0", 1 << 20, 4 << 20, "bytes", false, 0, 0}};
  plan.units_solved = 1;
  plan.units_known = 1;
  plan.ranks = {rank};
  return plan;
}

TEST(CtlGolden, StatusMatchesItsGoldenFile) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RenderStatus(Read("snapshot.json")));
  ExpectGolden(text, "status.txt");
}

TEST(CtlRender, ADrainedNodeIsReportedFirst) {
  std::string snapshot = Read("snapshot.json");
  snapshot.insert(snapshot.find('{') + 1,
                  R"json("drained": {"by": "root (alice)",
                      "reason": "a \u001b[31m", "age_s": 12.0},)json");
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text, RenderStatus(snapshot));
  EXPECT_THAT(WholeLines(text),
              HasSubstr("DRAINED by root (alice) 12 s ago (a ?[31m): "
                        "nothing new is granted until sluicectl undrain"
                        "\n\nPOOL"));
}

TEST(CtlRender, AUsedMetricsPortIsReported) {
  json snapshot = json::parse(Read("snapshot.json"));
  snapshot["http"] = {{"listen", "127.0.0.1:9435"},
                      {"fault", "cannot listen on 127.0.0.1:9435"}};
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RenderStatus(snapshot.dump()));
  EXPECT_THAT(text, HasSubstr("NO METRICS over TCP: cannot listen on "
                              "127.0.0.1:9435\n\nPOOL"));
}

TEST(CtlRender, AProcessWithoutASessionIsNamed) {
  json snapshot = json::parse(Read("snapshot.json"));
  snapshot["holders"] = {{{"pid", 77},
                          {"uid", 1001},
                          {"command", "py\x1b[2J"},
                          {"gpu_bytes", 3 << 20},
                          {"host_bytes", 1 << 30}}};
  const std::string line =
      "process 77 (py?[2J) of user 1001 has 3 MiB of GPU memory and 1 GiB of "
      "host memory until it ends: kill 77\n";
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RenderStatus(snapshot.dump()));
  EXPECT_THAT(WholeLines(text), HasSubstr("\nHELD WITHOUT A SESSION\n" + line));
  bool returning = false;
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string lines,
                              RenderHolders(snapshot.dump(), returning));
  EXPECT_EQ(lines, line);
  EXPECT_TRUE(returning) << "4 MiB of GPU 1 are quarantined";
}

// Guards against counting other users' events as "not kept any more".
TEST(CtlRender, HiddenEventsDoNotCountAsLost) {
  const auto text = [](int from) {
    const json node = {
        {"generation", 1},
        {"events_from", from},
        {"events",
         {{{"number", 9}, {"age_s", 0}, {"kind", "lease"}, {"text", "x"}}}}};
    SeenEvents seen = {.generation = 1, .last = 3};
    return RenderEventLines(node.dump(), seen, /*as_json=*/false,
                            absl::UnixEpoch())
        .value();
  };
  EXPECT_THAT(text(1), ::testing::Not(HasSubstr("not kept")));
  EXPECT_THAT(text(6), HasSubstr("(2 events are not kept any more)"));
}

// The daemon drops events of the users with the most events first, so numbers
// have gaps.
TEST(CtlRender, LostEventsAreCountedOnce) {
  json node = {
      {"generation", 1}, {"events_from", 8}, {"events", json::array()}};
  for (const int number : {4, 6, 9}) {
    node["events"].push_back(
        {{"number", number}, {"age_s", 0}, {"kind", "lease"}, {"text", "x"}});
  }
  SeenEvents seen = {.generation = 1, .last = 3};
  for (const int lost : {2, 0}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const std::string lines,
        RenderEventLines(node.dump(), seen, /*as_json=*/false,
                         absl::UnixEpoch()));
    const auto said = lines.find("not kept any more");
    EXPECT_EQ(said != std::string::npos, lost > 0) << lines;
    const std::string count = fmt::format("({} events are not kept", lost);
    EXPECT_EQ(lines.find(count) != std::string::npos, lost > 0);
    EXPECT_EQ(lines.find("not kept", said + 1), std::string::npos);
    EXPECT_EQ(lines.empty(), lost == 0) << "seen events are shown again";
    EXPECT_EQ(seen.last, 9u);
  }
  node["events_from"] = 12;
  EXPECT_TRUE(
      RenderEventLines(node.dump(), seen, /*as_json=*/false, absl::UnixEpoch())
          .ok());
  EXPECT_EQ(seen.last, 11u) << "event 12 is still to come";
}

// Guards against output that lacks the kind of host memory, the memory that
// ranks hold outside leases, or the age of a lost GPU's figures.
TEST(CtlRender, MemoryOutsideLeasesIsShownByPoolAndByRank) {
  json snapshot = json::parse(Read("snapshot.json"));
  snapshot["held_outside_by"] = "contexts";
  snapshot["held_outside_age_s"] = 0.25;
  for (const int gpu : {0, 1}) {
    snapshot["gpus"][gpu]["held_outside_bytes"] = 3 << 20;
    snapshot["gpus"][gpu]["held_outside_age_s"] = gpu == 0 ? 0.25 : 75;
  }
  snapshot["jobs"][0]["ranks"][0]["outside_bytes"] = 5 << 20;
  snapshot["jobs"][0]["ranks"][1]["outside_bytes"] = nullptr;
  snapshot["host_memory"] = {{"kind", "memfd"}, {"why", "seccomp\x1b[2J"}};
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RenderStatus(snapshot.dump()));
  EXPECT_THAT(
      WholeLines(text),
      HasSubstr(
          "\nHELD OUTSIDE (seen 0.25 s ago)\n"
          "gpu 0: 3 MiB are held outside leases, by contexts: free when they "
          "end\n"
          "gpu 1: 3 MiB are held outside leases, by contexts: free when they "
          "end (it does not answer; seen 1 min 15 s ago)\n"
          "gpu 0: 5 MiB are outside the lease of rank 0 of llama-32k\n"));
  EXPECT_THAT(WholeLines(text),
              HasSubstr("pinned host memory, memfd (seccomp?[2J)\n"));
}

// The values are as long as a real daemon's: a generation of 19 digits, long
// names.
TEST(CtlRender, NoLineIsWiderThan80Columns) {
  json snapshot = json::parse(Read("snapshot.json"));
  const std::string name(64, 'n'), word(90, 'w');
  snapshot["generation"] = 1'764'390'025'123'456'789;
  snapshot["jobs"][0]["name"] = name;
  snapshot["plans"][0]["job"] = name;
  snapshot["budgets"][0]["cgroup"] = "/" + word;
  snapshot["events"][0]["text"] = "lost " + word + " end";
  snapshot["links"] = {{{"name", name},
                        {"parent", "root-0000:3a"},
                        {"h2d_bytes_per_second", 25e9},
                        {"d2h_bytes_per_second", 25e9},
                        {"both_bytes_per_second", nullptr},
                        {"speed_from", "configuration"}}};
  snapshot["waiting"] = {{{"job", name},
                          {"uid", 7},
                          {"rank", 3},
                          {"pool", "gpu"},
                          {"index", 1},
                          {"bytes", int64_t{5} << 30},
                          {"background", false},
                          {"lacks", "pool"},
                          {"in_front", 2},
                          {"elapsed_s", 75},
                          {"deadline_in_s", 525}}};
  const std::string text = snapshot.dump();
  for (const auto& shown : {RenderStatus(text), RenderJobs(text),
                            RenderBudgets(text), RenderBandwidth(text)}) {
    ASSERT_TRUE(shown.ok()) << shown.status();
    for (const absl::string_view line : absl::StrSplit(*shown, '\n')) {
      EXPECT_LE(Width(std::string(line)), 80) << line;
    }
  }
  EXPECT_THAT(*RenderStatus(text), HasSubstr(name));
  EXPECT_THAT(WholeLines(*RenderStatus(text)),
              HasSubstr("memory there, 2 in front\n"));
}

TEST(CtlGolden, JobsMatchTheirGoldenFile) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RenderJobs(Read("snapshot.json")));
  ExpectGolden(text, "jobs.txt");
}

TEST(CtlGolden, BudgetsMatchTheirGoldenFile) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RenderBudgets(Read("snapshot.json")));
  ExpectGolden(text, "budgets.txt");
}

TEST(CtlGolden, APlanMatchesItsGoldenFile) {
  ExpectGolden(RenderPlan(SamplePlan()), "plan.txt");
}

TEST(CtlGolden, AnExplainedPlanPrintsEqualRanksOnce) {
  plan::NodePlan plan = SamplePlan();
  plan.ranks.push_back(plan.ranks[0]);
  plan.ranks[1].rank = Rank(1);
  ExpectGolden(RenderPlan(plan, true), "plan_explain.txt");
}

TEST(CtlRender, APlacementNamesItsProof) {
  const auto explained = [](const char* proved_by, Bytes lower_bound) {
    plan::NodePlan plan = SamplePlan();
    plan.ranks[0].segments.resize(1);
    plan.ranks[0].segments[0].placement.proved_by = proved_by;
    plan.ranks[0].segments[0].placement.lower_bound = lower_bound;
    return WholeLines(RenderPlan(plan, true));
  };
  EXPECT_THAT(explained("max_live", MiB(8)), HasSubstr("alive at once"));
  EXPECT_THAT(explained("search", MiB(8)), HasSubstr("a search refuted"));
  EXPECT_THAT(explained("cbc", MiB(8)), HasSubstr("CBC refuted"));
  EXPECT_THAT(explained("", MiB(8)), Not(HasSubstr("refuted")));
  EXPECT_THAT(explained("none", MiB(5)), HasSubstr("at most 60.0 % above"));
  EXPECT_THAT(explained("none", Bytes(0)), HasSubstr("at most 0.0 % above"));
}

TEST(CtlRender, EachPlanningStateNamesWhatItWaitsFor) {
  json snapshot = json::parse(Read("snapshot.json"));
  const auto text = [&](const char* state, json plan, json others) {
    snapshot["planning"] = {{{"job", "tune"},
                             {"uid", 7},
                             {"state", state},
                             {"ranks", 1},
                             {"ranks_wanted", 2},
                             {"elapsed_s", nullptr},
                             {"deadline_in_s", nullptr},
                             {"plan_id", std::move(plan)},
                             {"waiting_for", std::move(others)},
                             {"progress", nullptr}}};
    const auto shown = RenderStatus(snapshot.dump());
    EXPECT_THAT(shown, sluice::testing::IsOk());
    return shown.ok() ? WholeLines(*shown) : "";
  };
  const json none = json::array();
  EXPECT_THAT(text("collecting", nullptr, none), HasSubstr("for profiles"));
  EXPECT_THAT(text("queued", nullptr, none), HasSubstr("for another plan"));
  EXPECT_THAT(text("solving", nullptr, none), HasSubstr("starts"));
  EXPECT_THAT(text("changing", 5, none), HasSubstr("plan 5 at the next step"));
  EXPECT_THAT(text("waiting", 5, {"a", "b"}),
              HasSubstr("plan 5 waits for host memory of a, b"));
  EXPECT_THAT(text("waiting", nullptr, {"a"}), HasSubstr("to calibrate in"));
}

TEST(CtlRender, AnInfeasiblePlanSaysWhy) {
  plan::NodePlan plan = SamplePlan();
  plan.infeasible = "host memory: 3 GiB needed, 1 GiB there";
  EXPECT_THAT(RenderPlan(plan), HasSubstr("does not fit: host memory"));
}

TEST(CtlRender, AChangedPlanHasNoTransientPeak) {
  plan::NodePlan plan = SamplePlan();
  plan.ranks[0].segments.clear();
  plan.ranks[0].transient_peak = Bytes(0);
  EXPECT_THAT(RenderPlan(plan), HasSubstr("transient peak -, "));
}

TEST(CtlRender, ASnapshotOfAnotherVersionSaysWhatToInstall) {
  for (const char* text : {"", "{}", "[1]", "{\"driver\": 7}"}) {
    EXPECT_THAT(RenderStatus(text),
                StatusIs(absl::StatusCode::kInternal,
                         HasSubstr("install the same version")))
        << text;
  }
}

TEST(CtlTable, ColumnsAlignAndControlCharactersAreReplaced) {
  Table table({"A", ">B"});
  table.Add({"α", "1"});
  table.Add({"x\x1b[2J", "100"});
  EXPECT_EQ(table.Text(), "A        B\nα        1\nx?[2J  100\n");
}

TEST(CtlTable, ColumnsThatDoNotFitGoIntoASecondTable) {
  Table table({"KEY", ">ONE", "TEXT"});
  table.Add({"k", "12345", "a text that goes on and on"});
  EXPECT_EQ(table.Text(40, 1),
            "KEY    ONE  TEXT\nk    12345  a text that goes on and on\n");
  EXPECT_EQ(table.Text(20, 1),
            "KEY    ONE\nk    12345\n\n"
            "KEY  TEXT\nk    a text that goes on and on\n");
}

TEST(CtlTable, LinesBreakBetweenWordsIfPossible) {
  EXPECT_EQ(Wrapped("one two\n\nαβγδεζη\n", 5), "one\n  two\n\nαβγδε\n  ζη\n");
  EXPECT_EQ(Wrapped("\nab", 5), "\nab");
}

TEST(CtlFormat, AmountsAreReadable) {
  EXPECT_EQ(Count(1234567), "1,234,567");
  EXPECT_EQ(Count(999), "999");
  EXPECT_EQ(Count(-1000), "-1,000");
  EXPECT_EQ(Span(0.5), "0.50 s");
  EXPECT_EQ(Span(192), "3 min 12 s");
  EXPECT_EQ(Span(90000), "1 d 1 h");
  EXPECT_EQ(Span(600), "10 min");
  EXPECT_EQ(Span(3661), "1 h 1 min");
  EXPECT_EQ(Span(5), "5 s");
  EXPECT_EQ(Span(0.0025), "2.5 ms");
  EXPECT_EQ(Span(0), "0 s");
  EXPECT_EQ(Size(-1), "-");
  EXPECT_EQ(Bar(1, 1'000'000), "#.........   0 %");
  EXPECT_EQ(Bar(999'999, 1'000'000), "#########. 100 %");
  EXPECT_EQ(Bar(1, 1), "########## 100 %");
  EXPECT_EQ(Bar(0, 0), "..........   0 %");
}

}  // namespace
}  // namespace sluice::ctl
