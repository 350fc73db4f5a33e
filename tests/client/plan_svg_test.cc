// Tests the picture of a memory plan: complete, small, and the same every time.
#include <fmt/format.h>

#include <random>
#include <regex>

#include "client/ctl/desk/plan_commands.h"
#include "gmock/gmock.h"
#include "tests/planner/generator.h"
#include "tests/support/golden.h"
#include "tests/support/status_matchers.h"

namespace sluice::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

planner::MemoryPlan PlanOf(const planner::NamedTrace& named) {
  const auto plan = planner::PlanMemory(named.trace, {.use_cbc = false});
  SLUICE_CHECK_OK(plan.status());
  return *plan;
}

// Returns `n` buffers that start one time unit apart and live for `life` units.
planner::NamedTrace Staircase(int n, int64_t life) {
  planner::NamedTrace named;
  for (int k = 0; k < n; ++k) {
    named.trace.buffers.push_back({k, k, k + life, Bytes(4096)});
    named.names.push_back(fmt::format("b{}", k));
  }
  named.trace.end = n + life;
  named.trace.alignment = Bytes(512);
  return named;
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

// Returns buffers of many sizes, some too small to be drawn one by one. Some
// live for the whole trace. The trace does not begin at 0.
planner::NamedTrace Mixed() {
  planner::NamedTrace named;
  for (int k = 0; k < 40; ++k) {
    const int64_t lower = 1000 + 37 * (k * k % 23);
    named.trace.buffers.push_back(
        {k, lower, lower + 1 + k * k * k / 40, Bytes(k < 8 ? 300 : k * 1000)});
    named.names.push_back(fmt::format("b{}", k));
  }
  named.trace.alignment = Bytes(512);
  named.source = "mixed";
  named.time_unit = "us";
  return named;
}

TEST(PlanSvg, PicturesAgreeWithTheGoldenFiles) {
  planner::NamedTrace few = Staircase(10, 9);
  planner::MemoryPlan gap = PlanOf(few);
  gap.lower_bound = Bytes(12288);
  gap.method = "";
  const planner::NamedTrace mixed = Mixed();
  testing::ExpectGolden(PlanSvg(few, gap), "tests/client/golden/plan_gap.svg");
  testing::ExpectGolden(PlanSvg(mixed, PlanOf(mixed)),
                        "tests/client/golden/plan_mixed.svg");
}

TEST(PlanSvg, FewBuffersAreDrawnWithTheirNames) {
  const auto named = Staircase(10, 4);
  const std::string svg = PlanSvg(named, PlanOf(named));
  EXPECT_THAT(svg, HasSubstr("Peak 16 KiB, proved optimal"));
  EXPECT_THAT(svg, HasSubstr("peak = bound 16 KiB"));
  EXPECT_THAT(svg, HasSubstr("<title>b3: 4 KiB, alive 3 to 7, at "));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_EQ(Count(svg, "<title>b"), 10);
}

TEST(PlanSvg, TheStripShowsBytesAliveOverTime) {
  const auto named = Staircase(10, 4);
  const std::string svg = PlanSvg(named, PlanOf(named));
  std::smatch path;
  ASSERT_TRUE(
      std::regex_search(svg, path, std::regex("class=\"l\" d=\"([^\"]*)\"")));
  EXPECT_EQ(Count(path[1], "V"), 4 + 3 + 1) << "up, down, and to the axis";
}

TEST(PlanSvg, AxesAreLabelledWithRoundBytesAndTimes) {
  const auto named = Staircase(10, 9);  // peak 36 KiB, 18 time units
  const std::string svg = PlanSvg(named, PlanOf(named));
  EXPECT_THAT(svg, HasSubstr(">32 KiB</text>"));
  EXPECT_THAT(svg, HasSubstr(">18</text>"));
}

TEST(PlanSvg, AGapShowsPeakAndBound) {
  const auto named = Staircase(10, 4);
  planner::MemoryPlan plan = PlanOf(named);
  plan.lower_bound = Bytes(12288);
  const std::string svg = PlanSvg(named, plan);
  EXPECT_THAT(svg, HasSubstr("33 % above the proved bound"));
  EXPECT_THAT(svg, HasSubstr("bound 12 KiB</text>"));
}

TEST(PlanSvg, APictureOf20000BuffersIsBelowAMegabyte) {
  const auto named = planner::GenerateIteration(
      *planner::FindIteration("gpt-13b-tp4-cp1-chunks1-mb11"), 1);
  ASSERT_GT(named.names.size(), 20000);
  EXPECT_LT(PlanSvg(named, PlanOf(named)).size(), 1 << 20);
}

TEST(PlanSvg, TheSamePlanGivesTheSamePicture) {
  const auto named = planner::GenerateIteration(
      *planner::FindIteration("gpt-7b-tp4-cp2-chunks1-mb2-swapped"), 1);
  const planner::MemoryPlan plan = PlanOf(named);
  EXPECT_EQ(PlanSvg(named, plan), PlanSvg(named, plan));
}

TEST(PlanSvg, NamesAreEscaped) {
  auto named = Staircase(3, 2);
  named.names[0] = "</title><script>\"&\x01";
  const std::string svg = PlanSvg(named, PlanOf(named));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, HasSubstr("&lt;/title&gt;&lt;script&gt;&quot;&amp;?"));
}

TEST(PlanSvg, AnEmptyPlanIsAValidPicture) {
  planner::NamedTrace empty;
  const std::string svg = PlanSvg(empty, PlanOf(empty));
  EXPECT_THAT(svg, HasSubstr("Peak 0 B, proved optimal"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(PlanSvg, EveryNumberIsAPlainDecimal) {
  const auto named = Staircase(200, 50);
  const std::string svg = PlanSvg(named, PlanOf(named));
  const std::regex number(" (?:x|y|width|height)=\"([^\"]*)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), number), end; at != end;
       ++at) {
    EXPECT_TRUE(std::regex_match((*at)[1].str(), std::regex("-?[0-9.]+")))
        << (*at)[0].str();
  }
}

TEST(PlanSvg, APictureOf200000BuffersIsBelowTenMegabytes) {
  planner::NamedTrace named;
  planner::MemoryPlan plan;
  std::mt19937 random(1);
  for (int k = 0; k < 200'000; ++k) {
    const auto lower = static_cast<int64_t>(random() % 1'000'000);
    named.trace.buffers.push_back(
        {k, lower, lower + 1 + static_cast<int64_t>(random() % 100'000),
         Bytes(4096)});
    named.names.push_back("a tensor with a name of some length");
    plan.offsets.push_back(
        Bytes(static_cast<int64_t>(random() % 1'000'000) * 4096));
  }
  plan.peak = plan.lower_bound = plan.max_live = GiB(4);
  const size_t size = PlanSvg(named, plan).size();
  EXPECT_LT(size, 10 << 20);
  EXPECT_GT(size, 100 << 10);
}

}  // namespace
}  // namespace sluice::ctl
