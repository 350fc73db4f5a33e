// Tests the configuration: defaults, keys, and one-line errors.
#include "daemon/config.h"

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::StatusIs;
using ::testing::HasSubstr;

TEST(Config, AnEmptyFileGivesTheDefaults) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig("", "c.toml"));
  EXPECT_EQ(config.driver, Config::DriverChoice::kAuto);
  EXPECT_EQ(config.sim.gpus, 2);
  EXPECT_EQ(config.sim.gpu_memory, MiB(36));
  EXPECT_EQ(config.principal_limits, Limits());
  EXPECT_FALSE(config.http_listen.has_value());
  EXPECT_EQ(config.plan_time_limit, absl::Seconds(20));
}

TEST(Config, KeysAreReadIntoTheConfig) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig(R"(
[device]
driver = "sim"
[sim]
gpus = 4
gpu_memory = "48MiB"
host_memory = "1073741824B"
numa_nodes = 2
granularity = "4KiB"
links = [{name = "a", h2d_bytes_per_s = 2e9, d2h_bytes_per_s = 1000000}, {name = "b", parent = "a"}, {name = "c", both_bytes_per_s = 3e9}]
gpu_links = ["a", "a", "b", "b"]
[cuda]
links = [{name = "pci-0000:3b:00.0", h2d_bytes_per_s = 24e9, both_bytes_per_s = 40e9}]
[pools]
gpu_bytes = "40MiB"
host_bytes = "384MiB"
host_ready_bytes = "64MiB"
extent_bytes = "8MiB"
[[bandwidth.user]]
uid = 1000
weight = 2.5
[budgets]
principal_gpu_bytes = "1GiB"
principal_host_bytes = "2GiB"
job_gpu_bytes = "3GiB"
job_host_bytes = "4GiB"
[[budgets.job]]
name = "x"
gpu_bytes = "5MiB"
host_bytes = "6MiB"
[gpus]
access = "any"
[http]
listen = ""
socket_group = "sluice"
[worker]
time_limit_s = 2.5
memory = "3GiB"
user = "nobody"
[log]
level = "debug"
)",
                                                               "c.toml"));
  EXPECT_EQ(config.driver, Config::DriverChoice::kSim);
  EXPECT_EQ(config.sim.gpus, 4);
  EXPECT_EQ(config.sim.gpu_memory, MiB(48));
  EXPECT_EQ(config.sim.host_memory, GiB(1));
  EXPECT_EQ(config.sim.numa_nodes, 2);
  EXPECT_EQ(config.sim.granularity, KiB(4));
  ASSERT_EQ(config.sim.links.size(), 3u);
  EXPECT_EQ(config.sim.links[0].d2h_bytes_per_second, 1e6);
  EXPECT_EQ(config.sim.links[1].h2d_bytes_per_second, 0);  // not throttled
  EXPECT_EQ(config.sim.links[1].parent, "a");
  EXPECT_EQ(config.sim.links[1].both_bytes_per_second, 0);
  EXPECT_EQ(config.sim.links[2].both_bytes_per_second, 3e9);
  EXPECT_EQ(config.sim.gpu_links[3], "b");
  ASSERT_EQ(config.cuda.links.size(), 1u);
  EXPECT_EQ(config.cuda.links[0].h2d_bytes_per_second, 24e9);
  EXPECT_EQ(config.cuda.links[0].both_bytes_per_second, 40e9);
  EXPECT_EQ(config.gpu_pool, MiB(40));
  EXPECT_EQ(config.host_ready, MiB(64));
  EXPECT_EQ(config.host_pool, MiB(384));
  EXPECT_EQ(config.extent, MiB(8));
  EXPECT_EQ(config.principal_limits, (Limits{GiB(1), GiB(2)}));
  EXPECT_EQ(config.job_limits, (Limits{GiB(3), GiB(4)}));
  EXPECT_EQ(config.named_job_limits.at("x"), (Limits{MiB(5), MiB(6)}));
  EXPECT_EQ(config.user_weights, (std::map<uint32_t, double>{{1000, 2.5}}));
  EXPECT_EQ(config.http_listen, "");
  EXPECT_FALSE(config.gpus_are_shown);
  EXPECT_EQ(config.http_socket_group, "sluice");
  EXPECT_EQ(config.plan_time_limit, absl::Milliseconds(2500));
  EXPECT_EQ(config.worker_memory, GiB(3));
  EXPECT_EQ(config.worker_user, "nobody");
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
}

TEST(Config, AnErrorIsOneLineThatNamesTheFault) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {
           Case{"[sim]\nspeed = 1\n",
                "c.toml:2: unknown key 'speed' in [sim]; known: gpu_links"},
           Case{"[simulator]\n", "c.toml:1: unknown key 'simulator'"},
           Case{"[http]\n\"\" = \"\"\n", "c.toml:2: unknown key '' in [http]"},
           Case{"\n[sim]\ngpus = \"two\"\n",
                "c.toml:3: 'gpus' must be a whole number from 1 to 64"},
           Case{"[sim]\ngpus = 65\n", "c.toml:2: 'gpus' must be"},
           Case{"[sim]\ngpus = 2.5\n", "c.toml:2: 'gpus' must be"},
           Case{"[sim]\ngpu_memory = \"36 parsecs\"\n",
                "c.toml:2: 'gpu_memory' '36 parsecs' is not a size"},
           Case{"[pools]\nhost_bytes = -1\n",
                "c.toml:2: 'host_bytes' must be a size above 0"},
           Case{"[device]\ndriver = \"rocm\"\n",
                "c.toml:2: 'driver' must be one of \"auto\", \"cuda\""},
           Case{"[device]\ndriver = 1\n", "c.toml:2: 'driver' must be one of"},
           Case{"device = \"sim\"\n", "c.toml:1: [device] must be a table"},
           Case{"[sim]\nlinks = [{name = \"a\", h2d_bytes_per_s = -1}]\n",
                "c.toml:2: 'h2d_bytes_per_s' must be a number, 0 or more"},
           Case{"[sim]\nlinks = [{}]\n", "c.toml:2: a link needs a name"},
           Case{"[sim]\ngpu_links = [\"x\", \"y\"]\n",
                "gpu_links names 'x', which is not in links"},
           Case{"[sim]\nlinks = [{name = \"a\", parent = \"x\"}]\n",
                "link a has the parent 'x', which is not in links"},
           Case{"[sim]\nlinks = [{name = \"a\", parent = \"b\"}, "
                "{name = \"b\", parent = \"a\"}]\n",
                "its parents form a cycle"},
           Case{"[sim]\nlinks = [{name = \"a\", parent = \"b\"}, "
                "{name = \"b\"}]\n",
                "say by gpu_links which link each GPU is on"},
           Case{"[sim]\nlinks = [{name = \"a\", both_bytes_per_s = \"1\"}]\n",
                "c.toml:2: 'both_bytes_per_s' must be a number, 0 or more"},
           Case{
               "[sim]\ngpu_links = [\"a\", \"a\"]\n"
               "links = [{name = \"a\", parent = \"b\", both_bytes_per_s = 1}, "
               "{name = \"b\", h2d_bytes_per_s = 1}]\n",
               "c.toml: link a: it limits both directions together, but link b "
               "above it limits each alone: give that link only "
               "both_bytes_per_s"},
           Case{"[cuda]\nlinks = [{name = \"a\", parent = \"b\"}]\n",
                "c.toml:2: unknown key 'parent' in a link; known: "
                "both_bytes_per_s"},
           Case{"[worker]\ntime_limit_s = 0\n",
                "c.toml:2: 'time_limit_s' must be above 0"},
           Case{"[sim\n", "c.toml:1: "},
           Case{"[[[[sim]\n", "c.toml:1: "},
       }) {
    const auto config = ParseConfig(c.text, "c.toml");
    EXPECT_THAT(config, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr(c.message)))
        << c.text;
    EXPECT_EQ(config.status().message().find('\n'), std::string::npos);
  }
}

TEST(Config, ConfiguredCgroupsCountAsPrincipals) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Config defaults, ParseConfig("", "c.toml"));
  EXPECT_EQ(defaults.cgroups.Of("/kubepods/pod7/c"), "/kubepods/pod7");
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Config config,
      ParseConfig("[quota]\ncgroups = [\"/jobs\"]\nsessions = 9\n"
                  "rank_sessions = 8\n",
                  "c.toml"));
  EXPECT_EQ(config.quota.sessions, 9);
  EXPECT_EQ(config.quota.ranks, 8);
  EXPECT_EQ(config.cgroups.Of("/kubepods/pod7/c"), "");
  EXPECT_EQ(config.cgroups.Of("/jobs/7/a"), "/jobs/7");
  EXPECT_THAT(ParseConfig("[quota]\ncgroups = [\"jobs\"]\n", "c.toml"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("c.toml:2: 'cgroups' 'jobs' is no path")));
}

TEST(Config, AUsersWeightNeedsAUidAndIsLimited) {
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT(ParseConfig("[[bandwidth.user]]\n" + text, "c.toml"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
  };
  refused("weight = 2\n", "a user's weight needs a uid");
  refused("uid = 7\nweight = 0\n", "c.toml:3: 'weight' must be 0.01 to 100");
  refused("uid = 7\nweight = 101\n", "must be 0.01 to 100");
  refused("uid = -1\n", "uid");
  refused("uid = 7\n[[bandwidth.user]]\nuid = 7\n", "uid 7 stands here twice");
}

TEST(Config, ASecondBudgetOfAJobIsRefused) {
  EXPECT_THAT(ParseConfig("[[budgets.job]]\nname = \"a\"\n"
                          "[[budgets.job]]\nname = \"a\"\n",
                          "c.toml"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("c.toml:3: job a stands here twice")));
}

TEST(Config, ABudgetForAnInvalidJobNameIsRefused) {
  EXPECT_THAT(ParseConfig("[[budgets.job]]\nname = \"my job\"\n", "c.toml"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("c.toml:1: job has a character with code "
                                 "32")));
}

// Guards against reading 40 as 40 bytes, and "40GB" as 40 GiB.
TEST(Config, SizesNeedUnitsAsOnTheCommandLine) {
  const auto bare = ParseConfig("[pools]\ngpu_bytes = 40\n", "c.toml");
  EXPECT_THAT(bare, StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("'gpu_bytes' must be a size above 0 in "
                                       "quotes, such as \"36MiB\", or \"40B\" "
                                       "for 40 bytes")));
  EXPECT_THAT(
      ParseConfig("[pools]\ngpu_bytes = \"40\"\n", "c.toml"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names no unit")));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Config config,
                              ParseConfig("[pools]\ngpu_memory = \"40GB\"\n"
                                          "extent_memory = \"8MB\"\n[budgets]\n"
                                          "job_host_memory = \"1MB\"\n",
                                          "c.toml"));
  EXPECT_EQ(config.gpu_pool, Bytes(40'000'000'000));
  EXPECT_EQ(config.extent, Bytes(8'000'000));
  EXPECT_EQ(config.job_limits.host, Bytes(1'000'000));
}

TEST(Config, ASettingGivenByTwoNamesIsRefused) {
  EXPECT_THAT(
      ParseConfig("[pools]\ngpu_bytes = \"1GiB\"\ngpu_memory = \"2GiB\"\n",
                  "c.toml"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("c.toml:3: 'gpu_memory' is gpu_bytes by another name: "
                         "give one of them")));
}

TEST(Config, AFileIsReadAndErrorsNameIt) {
  testing::TempDir directory;
  const std::string path = directory.File("c.toml");
  std::ofstream(path) << "[sim]\ngpus = 3\n";
  SLUICE_ASSERT_OK_AND_ASSIGN(const Config config, ReadConfig(path));
  EXPECT_EQ(config.sim.gpus, 3);
  std::ofstream(directory.File("empty.toml"));
  EXPECT_THAT(ReadConfig(directory.File("empty.toml")), testing::IsOk());
  EXPECT_THAT(ReadConfig(directory.File("none.toml")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.toml")));
}

// Guards against an error that quotes a value with its newlines (found by
// fuzzing).
TEST(Config, AnErrorStaysOneLineWhateverItQuotes) {
  for (const std::string& text :
       {std::string("a = t\n"), std::string("\"a\\nb\\u001b\" = 1\n"),
        std::string(3000, 'k') + " = 1\n", std::string("driver = '\tsim'")}) {
    const absl::Status fault = ParseConfig(text, "c.toml").status();
    EXPECT_THAT(fault, StatusIs(absl::StatusCode::kInvalidArgument));
    const std::string line(fault.message());
    EXPECT_LT(line.size(), 1100u);
    EXPECT_EQ(line.find_first_of("\n\t\x1b"), std::string::npos) << line;
  }
}

// A folder would read as an empty file, and the daemon would start with
// defaults.
TEST(Config, APathThatIsNoRegularFileIsRefused) {
  testing::TempDir directory;
  for (const std::string& path :
       std::vector<std::string>{directory.path(), "/dev/null"}) {
    EXPECT_THAT(ReadConfig(path),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(path + ": it is no regular file")));
  }
}

}  // namespace
}  // namespace sluice::daemon
