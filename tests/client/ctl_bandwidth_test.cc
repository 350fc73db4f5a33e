// Tests how measured links are read, printed and turned into configuration.
#include <nlohmann/json.hpp>
#include <string>

#include "client/ctl/bandwidth/bandwidth.h"
#include "client/ctl/status/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::ctl {
namespace {

using ::sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two GPUs behind one switch, on a root without other GPUs.
constexpr const char* kSwitch = R"({"driver": "cuda",
  "gpus": [{"link": "gpu0", "free_bytes": 8}, {"link": "gpu1", "free_bytes": 9}],
  "jobs": [{"name": "tune", "ranks": [{}]}, {"name": "gone", "ranks": []}],
  "links": [{"name": "gpu0", "parent": "switch"},
            {"name": "switch", "parent": "root"},
            {"name": "gpu1", "parent": "switch"},
            {"name": "root", "parent": null},
            {"name": "idle", "parent": "root"}]})";

MeasurableNode Measured(MeasuredSpeeds gpu, MeasuredSpeeds both) {
  auto node = ReadLinks(kSwitch);
  EXPECT_THAT(node, sluice::testing::IsOk());
  node->links[0].measured = node->links[2].measured = gpu;
  node->links[1].measured = both;
  return *node;
}

TEST(MeasurableNode, LinksWithTheSameGpusAreMeasuredOnce) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const MeasurableNode node, ReadLinks(kSwitch));
  EXPECT_THAT(node.jobs, ElementsAre("tune"));
  EXPECT_THAT(node.gpu_free, ElementsAre(8, 9));
  std::string measured;
  for (const MeasurableLink& link : node.links) {
    if (link.measurable) measured += link.name + " ";
  }
  EXPECT_EQ(measured, "gpu0 switch gpu1 ");
  EXPECT_THAT(node.links[1].gpus, ElementsAre(0, 1));
  EXPECT_THAT(node.links[3].gpus, ElementsAre(0, 1));
}

TEST(MeasurableNode, AStatusOfAnotherVersionIsRefused) {
  for (const char* status :
       {"", "[]", R"({"driver": "sim", "gpus": [], "jobs": []})",
        R"({"driver": "sim", "gpus": [{}], "jobs": [], "links": []})",
        R"({"driver": "sim", "gpus": [], "jobs": [], "links": [3]})",
        R"({"driver": "sim", "gpus": [], "jobs": [],
            "links": [{"name": "a", "parent": "b"},
                      {"name": "b", "parent": "a"}]})"}) {
    EXPECT_THAT(ReadLinks(status),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("it is of another version")))
        << status;
  }
}

TEST(LinkConfiguration, ASwitchThatCarriesLessThanItsGpusIsALimit) {
  EXPECT_EQ(ConfigurationOf(
                Measured({24e9, 25e9, 24e9, 25e9}, {25.1e9, 50e9, 25e9, 50e9})),
            "[cuda]\nlinks = [\n"
            "  {name = \"gpu0\", h2d_bytes_per_s = 2.4e+10, "
            "d2h_bytes_per_s = 2.5e+10},\n"
            "  {name = \"switch\", h2d_bytes_per_s = 2.51e+10},\n"
            "  {name = \"gpu1\", h2d_bytes_per_s = 2.4e+10, "
            "d2h_bytes_per_s = 2.5e+10},\n]\n");
}

TEST(LinkConfiguration, ASwitchThatCarriesAllOfItsGpusIsNoLimit) {
  const std::string text = ConfigurationOf(
      Measured({24e9, 25e9, 24e9, 25e9}, {47e9, 49e9, 47e9, 49e9}));
  EXPECT_THAT(text, Not(HasSubstr("switch")));
  EXPECT_THAT(text, Not(HasSubstr("both")));
}

TEST(LinkConfiguration, ALimitOfBothDirectionsIsTheSumOfBoth) {
  // The memory behind the switch allows full speed in one direction alone, but
  // 60 GB/s in both together.
  EXPECT_THAT(ConfigurationOf(
                  Measured({24e9, 25e9, 24e9, 25e9}, {48e9, 50e9, 30e9, 30e9})),
              HasSubstr("  {name = \"switch\", both_bytes_per_s = 6e+10},\n"));
}

// Above a link with one limit for both directions, the daemon refuses links
// with separate limits.
TEST(LinkConfiguration, LinksAboveALimitOfBothDirectionsGetSuchALimit) {
  const std::string text = ConfigurationOf(
      Measured({24e9, 25e9, 15e9, 15e9}, {30e9, 31e9, 16e9, 16e9}));
  EXPECT_THAT(text, HasSubstr("{name = \"gpu0\", h2d_bytes_per_s = 2.4e+10, "
                              "d2h_bytes_per_s = 2.5e+10, "
                              "both_bytes_per_s = 3e+10}"));
  EXPECT_THAT(text,
              HasSubstr("  {name = \"switch\", both_bytes_per_s = 3.2e+10},"));
}

TEST(LinkConfiguration, AllLinksOfASimulatedNodeAreWritten) {
  MeasurableNode node = Measured({2e9, 2e9, 2e9, 2e9}, {4e9, 4e9, 4e9, 4e9});
  node.driver = "sim";
  const std::string text = ConfigurationOf(node);
  EXPECT_THAT(text, HasSubstr("[sim]\n"));
  EXPECT_THAT(text, HasSubstr("  {name = \"switch\", parent = \"root\"},\n"));
  EXPECT_THAT(text, HasSubstr("\n]\ngpu_links = [\"gpu0\", \"gpu1\"]\n"));
}

TEST(MeasuredLinks, MeasuredLinksArePrintedAsATableAndAsJson) {
  MeasurableNode node =
      Measured({24e9, 25e9, 23e9, 24.5e9}, {0.5e9, 50e9, 0.4e9, 50e9});
  node.links[0].set = {20e9, 0, 0.9e9};
  node.links[0].set_from = "configuration";
  EXPECT_EQ(RenderMeasured(node),
            "LINK    GPUS      TO GPU     TO HOST  BOTH: TO GPU     TO HOST  "
            "SET BEFORE                              BY\n"
            "gpu0    0     24.00 GB/s  25.00 GB/s    23.00 GB/s  24.50 GB/s  "
            "20.00 GB/s to GPU, 900.0 MB/s together  configuration\n"
            "switch  0,1   500.0 MB/s  50.00 GB/s    400.0 MB/s  50.00 GB/s  "
            "-                                       -\n"
            "gpu1    1     24.00 GB/s  25.00 GB/s    23.00 GB/s  24.50 GB/s  "
            "-                                       -\n");
  const auto json = nlohmann::json::parse(MeasuredJson(node, 2));
  EXPECT_EQ(json["driver"], "cuda");
  EXPECT_EQ(json["seconds"], 2);
  ASSERT_EQ(json["links"].size(), 3u);
  EXPECT_EQ(json["links"][1]["gpus"], (std::vector<int>{0, 1}));
  EXPECT_EQ(json["links"][1]["parent"], "root");
  EXPECT_EQ(json["links"][0]["both_d2h_bytes_per_second"], 24.5e9);
  EXPECT_EQ(json["configuration"], ConfigurationOf(node));
  EXPECT_EQ(json["links"][0]["set"]["both_bytes_per_second"], 0.9e9);
  EXPECT_EQ(json["links"][0]["set"]["from"], "configuration");
  EXPECT_TRUE(json["links"][1]["set"]["from"].is_null());
  EXPECT_EQ(json["links"][0]["set"]["h2d_bytes_per_second"], 20e9);
  EXPECT_TRUE(json["links"][0]["set"]["d2h_bytes_per_second"].is_null());
  EXPECT_TRUE(json["kept"].is_null());
  EXPECT_EQ(nlohmann::json::parse(MeasuredJson(node, 2, false))["kept"],
            "waits");
}

TEST(MeasuredLinks, KeptLimitsAgreeWithTheConfiguration) {
  const auto limits =
      LimitsOf(Measured({24e9, 25e9, 24e9, 25e9}, {25.1e9, 50e9, 25e9, 50e9}));
  ASSERT_EQ(limits.size(), 3u);
  EXPECT_EQ(limits.at("gpu0").d2h, 25e9);
  EXPECT_EQ(limits.at("switch").h2d, 25.1e9);
  EXPECT_EQ(limits.at("switch").d2h, 0);
}

TEST(MeasuredLinks, ReadLinksFindsSetSpeedsAttachedJobsAndKeptLinks) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const MeasurableNode old, ReadLinks(kSwitch));
  EXPECT_FALSE(old.keeps);
  EXPECT_FALSE(old.links[0].set.any());
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const MeasurableNode node,
      ReadLinks(R"({"driver": "cuda", "gpus": [], "measured_links": null,
                    "jobs": [{"name": "a", "ranks": [{"closed": true}]},
                             {"name": "b", "ranks": [{"closed": false}]}],
                    "links": [{"name": "x", "parent": null,
                               "h2d_bytes_per_second": 1e9,
                               "d2h_bytes_per_second": null,
                               "both_bytes_per_second": null,
                               "speed_from": "measured"}]})"));
  EXPECT_TRUE(node.keeps);
  EXPECT_THAT(node.attached, ElementsAre("b"));
  EXPECT_EQ(node.links[0].set.h2d, 1e9);
  EXPECT_EQ(node.links[0].set_from, "measured");
}

TEST(LinkSpeeds, LinkSpeedsArePrintedWithTheirSources) {
  auto node = nlohmann::json::parse(R"({
    "links": [{"name": "gpu0", "parent": "switch", "speed_from": "measured",
               "h2d_bytes_per_second": 24e9, "d2h_bytes_per_second": 25e9,
               "both_bytes_per_second": null},
              {"name": "gpu1", "parent": "switch",
               "speed_from": "configuration", "h2d_bytes_per_second": 20e9,
               "d2h_bytes_per_second": null, "both_bytes_per_second": null},
              {"name": "switch", "parent": null, "speed_from": null,
               "h2d_bytes_per_second": null, "d2h_bytes_per_second": null,
               "both_bytes_per_second": null}],
    "measured_links": {"by": "root", "age_s": 192.0, "waits": false,
      "links": [{"name": "gpu0"}, {"name": "gpu1"}]}})");
  EXPECT_EQ(
      RenderLinks(node),
      "LINK    ON          TO GPU     TO HOST  TOGETHER  FROM\n"
      "gpu0    switch  24.00 GB/s  25.00 GB/s         -  measured by root, 3 "
      "min 12 s ago\n"
      "gpu1    switch  20.00 GB/s           -         -  configuration, not "
      "what was measured\n"
      "switch  -                -           -         -  -\n");
  EXPECT_EQ(RenderMeasuredLinks(node), "\n" + RenderLinks(node));
  node["measured_links"]["waits"] = true;
  EXPECT_THAT(RenderLinks(node),
              HasSubstr("measured by root, 3 min 12 s ago waits until no"));
  node["measured_links"]["waits"] = false;
  node["measured_links"]["links"][0]["name"] = "gone";
  EXPECT_THAT(RenderLinks(node), HasSubstr("is not used, since it does not"));
  node["measured_links"] = nullptr;
  EXPECT_EQ(RenderMeasuredLinks(node), "");
}

}  // namespace
}  // namespace sluice::ctl
