// Runs `sluicectl plan memory` as a process: its output, files and exit status.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "gmock/gmock.h"
#include "tests/planner/generator.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::client {
namespace {

using nlohmann::json;
using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::sluice::testing::TempDir;
using ::testing::HasSubstr;

std::unique_ptr<Child> Start(std::vector<std::string> arguments) {
  const std::vector<std::string> command = {BinaryPath("sluicectl"), "plan",
                                            "memory"};
  arguments.insert(arguments.begin(), command.begin(), command.end());
  return Child::Spawn(arguments);
}

ChildResult Plan(std::vector<std::string> arguments) {
  return Start(std::move(arguments))->Join();
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Write(const TempDir& dir, const char* name,
                  const std::string& text) {
  const std::string path = dir.File(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// A small trace with an optimal peak of 8 + 4 = 12 bytes.
constexpr const char* kSmall =
    "size,id,upper,lower\n8,a,4,0\n4,b,3,1\n4,c,6,3\n8,d,8,5\n";

// Returns 20,000 buffers of random lifetimes and sizes. No solver meets the
// lower bound, and all solvers together take several seconds.
std::string Hard() {
  std::mt19937 random(1);
  std::string text = "id,lower,upper,size\n";
  for (int k = 0; k < 20000; ++k) {
    const uint32_t lower = random() % 100000;
    text += fmt::format("{},{},{},{}\n", k, lower, lower + 1 + random() % 20000,
                        1 + random() % 100000);
  }
  return text;
}

// Returns the rows of a CSV by column name. Uses no code of the planner.
std::vector<std::map<std::string, std::string>> Table(const std::string& text) {
  std::istringstream lines(text);
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::vector<std::string> values;
    for (std::string cell; std::getline(cells, cell, ',');) {
      values.push_back(cell);
    }
    if (names.empty()) {
      names = values;
      continue;
    }
    rows.emplace_back();
    for (size_t k = 0; k < names.size(); ++k) rows.back()[names[k]] = values[k];
  }
  return rows;
}

struct Placed {
  int64_t lower, upper, size, offset;
};

// Checks the offsets, and that buffers that live at once do not overlap.
// Returns the peak, with sizes rounded up to `align`.
int64_t CheckedPeak(const std::string& plan_csv, int64_t align) {
  std::vector<Placed> placed;
  for (const auto& row : Table(plan_csv)) {
    placed.push_back({std::stoll(row.at("lower")), std::stoll(row.at("upper")),
                      std::stoll(row.at("size")),
                      std::stoll(row.at("offset"))});
  }
  int64_t peak = 0;
  for (size_t i = 0; i < placed.size(); ++i) {
    const Placed& a = placed[i];
    EXPECT_GE(a.offset, 0);
    EXPECT_EQ(a.offset % align, 0);
    peak = std::max(peak, a.offset + (a.size + align - 1) / align * align);
    for (size_t j = 0; j < i; ++j) {
      const Placed& b = placed[j];
      const bool together = a.lower < b.upper && b.lower < a.upper;
      const bool overlap =
          a.offset < b.offset + b.size && b.offset < a.offset + a.size;
      if (together && overlap) ADD_FAILURE() << "rows " << j << " and " << i;
    }
  }
  return peak;
}

void ExpectRefusal(const ChildResult& result, const std::string& what) {
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: "));
  EXPECT_THAT(result.err, HasSubstr(what));
}

TEST(PlanMemoryCli, JsonIsOneObjectAndNothingElseIsOnStdout) {
  const TempDir dir;
  const ChildResult result =
      Plan({Write(dir, "t.csv", kSmall), "--json", "-o", dir.File("p.csv")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json got = json::parse(result.out);
  std::vector<std::string> keys;
  for (const auto& [key, value] : got.items()) keys.push_back(key);
  EXPECT_THAT(keys,
              ::testing::UnorderedElementsAre(
                  "buffers", "align_bytes", "peak_bytes", "max_live_bytes",
                  "lower_bound_bytes", "gap", "optimal", "proved_by", "method",
                  "levels", "stopped_by", "seconds", "valid"));
  EXPECT_EQ(got["buffers"], 4);
  EXPECT_EQ(got["peak_bytes"], 12);
  EXPECT_EQ(got["lower_bound_bytes"], 12);
  EXPECT_EQ(got["gap"], 0);
  EXPECT_EQ(got["optimal"], true);
  EXPECT_EQ(got["proved_by"], "max_live");
  EXPECT_EQ(got["stopped_by"], "proof");
  EXPECT_EQ(got["valid"], true);
}

TEST(PlanMemoryCli, ThePlanHasTheInputsRowsInOrderAndIsValid) {
  const TempDir dir;
  const std::string plan = dir.File("p.csv");
  ASSERT_EQ(Plan({Write(dir, "t.csv", kSmall), "-o", plan}).exit_code, 0);
  const std::string text = Slurp(plan);
  EXPECT_TRUE(text.starts_with("size,id,upper,lower,offset\n8,a,4,0,")) << text;
  const auto rows = Table(text);
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[3].at("id"), "d");
  EXPECT_EQ(CheckedPeak(text, 1), 12);
}

TEST(PlanMemoryCli, AlignmentChangesOffsetsButNotSizes) {
  const TempDir dir;
  const std::string plan = dir.File("p.csv");
  const ChildResult result = Plan(
      {Write(dir, "t.csv", kSmall), "--align", "64B", "--json", "-o", plan});
  const json got = json::parse(result.out);
  EXPECT_EQ(got["peak_bytes"], 128);
  EXPECT_EQ(got["max_live_bytes"], 128);
  EXPECT_EQ(CheckedPeak(Slurp(plan), 64), 128);
  EXPECT_EQ(Table(Slurp(plan))[0].at("size"), "8");
}

// Buffers of 1 and 513 bytes fit into 1,025 bytes. The proved bound of 1,536 is
// for sizes rounded up to 512.
TEST(PlanMemoryCli, ABoundWithAlignmentIsReportedForRoundedSizes) {
  const TempDir dir;
  const std::string trace =
      Write(dir, "t.csv", "id,lower,upper,size\n1,0,2,1\n2,0,2,513\n");
  const ChildResult result = Plan({trace, "--align", "512B"});
  EXPECT_THAT(result.out, HasSubstr("(1,536 bytes), of sizes rounded up to "
                                    "512\n"));
  EXPECT_THAT(Plan({trace}).out, ::testing::Not(HasSubstr("rounded up")));
  const json got = json::parse(Plan({trace, "--align", "512B", "--json"}).out);
  EXPECT_EQ(got["align_bytes"], 512);
}

TEST(PlanMemoryCli, EffortMustBeFromOneToAMillion) {
  const TempDir dir;
  const std::string trace = Write(dir, "t.csv", kSmall);
  for (const char* effort : {"3", "1000000"}) {
    EXPECT_EQ(Plan({trace, "--effort", effort}).exit_code, 0);
  }
  for (const std::string effort : {"0", "1000001"}) {
    ExpectRefusal(
        Plan({trace, "--effort", effort}),
        "--effort " + effort + ": give 1 (the usual work) to 1000000");
  }
}

TEST(PlanMemoryCli, AWholeIterationIsPlannedFromACsvAndFromALog) {
  const TempDir dir;
  const plan::Trace trace =
      planner::GenerateIteration(
          *planner::FindIteration("gpt-7b-tp4-cp2-chunks1-mb2-swapped"), 1)
          .trace;
  const std::string plan = dir.File("p.csv");
  const ChildResult csv = Plan({Write(dir, "t.csv", planner::ToCsv(trace)),
                                "--align", "512B", "--json", "-o", plan});
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  const json got = json::parse(csv.out);
  EXPECT_EQ(CheckedPeak(Slurp(plan), 512), got["peak_bytes"]);
  EXPECT_EQ(got["gap"], 0);
  const ChildResult log =
      Plan({Write(dir, "t.log", planner::ToRequestLog(trace)), "--json", "-o",
            plan});
  ASSERT_EQ(log.exit_code, 0) << log.err;
  EXPECT_EQ(json::parse(log.out)["peak_bytes"], got["peak_bytes"]);
  EXPECT_EQ(CheckedPeak(Slurp(plan), 512), got["peak_bytes"]);
}

TEST(PlanMemoryCli, CapacityDecidesTheExitStatus) {
  const TempDir dir;
  const std::string trace = Write(dir, "t.csv", kSmall);
  const ChildResult fits = Plan({trace, "--capacity", "12B", "--json"});
  EXPECT_EQ(fits.exit_code, 0);
  EXPECT_EQ(json::parse(fits.out)["fits"], true);
  const ChildResult not_fits = Plan({trace, "--capacity", "11B", "--json"});
  EXPECT_EQ(not_fits.exit_code, 3);
  EXPECT_EQ(json::parse(not_fits.out)["fits"], false);
  EXPECT_EQ(json::parse(not_fits.out)["valid"], true);
}

// Guards against reading 1MB as 1 MiB, which has room for the buffer.
TEST(PlanMemoryCli, AMegabyteIsAMillionBytes) {
  const TempDir dir;
  const std::string trace =
      Write(dir, "t.csv", "id,lower,upper,size\n1,0,4,1047552\n");
  const ChildResult mb = Plan({trace, "--capacity", "1MB"});
  EXPECT_EQ(mb.exit_code, 3);
  EXPECT_THAT(mb.out, HasSubstr("proved not to fit in --capacity 976.6 KiB "
                                "(1,000,000 bytes)"));
  EXPECT_EQ(Plan({trace, "--capacity", "1MiB"}).exit_code, 0);
  ExpectRefusal(Plan({trace, "--capacity", "1000000"}), "names no unit");
}

TEST(PlanMemoryCli, ThePlanMayGoToStdout) {
  const TempDir dir;
  const ChildResult result = Plan({Write(dir, "t.csv", kSmall), "-o", "-"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(CheckedPeak(result.out, 1), 12);
  EXPECT_THAT(result.err, HasSubstr("12 bytes"));
}

TEST(PlanMemoryCli, TextShowsPeakBoundAndProof) {
  const TempDir dir;
  const ChildResult result = Plan({Write(dir, "t.csv", kSmall)});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("4 buffers"));
  EXPECT_THAT(result.out, HasSubstr("optimal: that much is alive at once"));
}

TEST(PlanMemoryCli, WrongInputIsOneErrorLineAndWritesNothing) {
  const TempDir dir;
  const std::string good = Write(dir, "t.csv", kSmall);
  const std::string bad =
      Write(dir, "bad.csv", "id,lower,upper,size\n1,0,4,8\n2,5,5,8\n");
  const std::string plan = dir.File("p.csv");
  ExpectRefusal(Plan({bad, "-o", plan}),
                bad + ":3:5: upper = 5 is not above lower = 5");
  EXPECT_FALSE(std::filesystem::exists(plan));
  ExpectRefusal(Plan({dir.File("none.csv")}), "there is no file");
  ExpectRefusal(Plan({dir.path()}), "is a folder");
  ExpectRefusal(Plan({good, "-o", dir.File("no/such/p.csv")}), "cannot write");
  ExpectRefusal(Plan({good, "-o", dir.path()}), "cannot write");
  ExpectRefusal(Plan({good, "--align", "3B"}), "power of two");
  ExpectRefusal(Plan({good, "--align", "0"}), "power of two from 1B to 1GiB");
  ExpectRefusal(Plan({good, "--device", "cuda:3"}),
                "has no devices to choose from, as it is of format minimalloc");
  ExpectRefusal(Plan({good, "--time-limit", "0"}), "--time-limit 0");
  ExpectRefusal(Plan({good, "--time-limit", "-1"}), "--time-limit -1");
  ExpectRefusal(Plan({good, "--time-limit", "86401"}), "--time-limit 86401");
  EXPECT_EQ(Plan({good, "--time-limit", "86400"}).exit_code, 0);
  ExpectRefusal(Plan({good, "--capacity", "much"}), "'much' is not a size");
  ExpectRefusal(Plan({good, "--capacity", "-5"}), "-5");
  ExpectRefusal(Plan({good, "--format", "xml"}), "--format 'xml'");
  ExpectRefusal(Plan({good, "--json", "-o", "-"}), "standard output can hold");
  ExpectRefusal(Plan({good, "-o", plan, "--svg", plan}), "its own file");
  ExpectRefusal(Plan({}), "TRACE");
}

TEST(PlanMemoryCli, TheTimeLimitEndsTheRunAndIsReported) {
  const TempDir dir;
  const std::string plan = dir.File("p.csv");
  const auto start = std::chrono::steady_clock::now();
  const ChildResult result = Plan(
      {Write(dir, "t.csv", Hard()), "--time-limit", "1", "--json", "-o", plan});
  const std::chrono::duration<double> wall =
      std::chrono::steady_clock::now() - start;
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LE(wall.count(), 10.0);
  const json got = json::parse(result.out);
  EXPECT_EQ(got["stopped_by"], "time");
  EXPECT_EQ(got["optimal"], false);
  EXPECT_EQ(CheckedPeak(Slurp(plan), 1), got["peak_bytes"]);
}

// Waits until `process` has a handler for `signal`.
void AwaitHandlerOf(int signal, pid_t process) {
  const std::string key = "SigCgt:\t";
  for (int i = 0; i < 6000; ++i) {
    const std::string status = Slurp(fmt::format("/proc/{}/status", process));
    const size_t at = status.find(key);
    if (at != status.npos &&
        std::stoull(status.substr(at + key.size(), 16), nullptr, 16) >>
                (signal - 1) &
            1) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "process " << process << " handles no signal " << signal;
}

TEST(PlanMemoryCli, CtrlCKeepsTheBestPlan) {
  const TempDir dir;
  const std::string plan = dir.File("p.csv");
  const auto child = Start({Write(dir, "t.csv", Hard()), "--json", "-o", plan});
  AwaitHandlerOf(SIGINT, child->pid());
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  const auto start = std::chrono::steady_clock::now();
  child->Kill(SIGINT);
  const ChildResult result = child->Join();
  const std::chrono::duration<double> wall =
      std::chrono::steady_clock::now() - start;
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_LE(wall.count(), 10.0) << "SIGINT did not end the search at once";
  const json got = json::parse(result.out);
  EXPECT_EQ(got["stopped_by"], "stopped");
  EXPECT_EQ(got["valid"], true);
  EXPECT_EQ(CheckedPeak(Slurp(plan), 1), got["peak_bytes"]);
}

TEST(PlanMemoryCli, TheTimeOnTheProgressLineAdvances) {
  const TempDir dir;
  const ChildResult result =
      Plan({Write(dir, "t.csv", Hard()), "--time-limit", "7"});
  EXPECT_EQ(result.exit_code, 0);
  // The program prints a line every 2 s, or later on a busy machine.
  std::set<std::string> times;
  const std::regex time(", ([2-9]\\.[0-9]) s\n");
  for (std::sregex_iterator it(result.err.begin(), result.err.end(), time), end;
       it != end; ++it) {
    times.insert((*it)[1]);
  }
  EXPECT_GE(times.size(), 2U) << result.err;
}

TEST(PlanMemoryCli, AKilledRunLeavesNoFileBehind) {
  const TempDir dir;
  const std::string trace = Write(dir, "t.csv", Hard());
  const std::string plan = Write(dir, "p.csv", "as it was");
  const auto child = Start({trace, "-o", plan, "--svg", dir.File("p.svg")});
  // The program reads for milliseconds, and then solves until its time limit.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  child->Kill(SIGTERM);
  const ChildResult result = child->Join();
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(Slurp(plan), "as it was");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 2) << "only the trace and the old plan may be there";
}

TEST(PlanMemoryCli, AnOutputReplacesTheFileWithTheUsualMode) {
  const TempDir dir;
  const std::string plan = Write(dir, "p.csv", "old");
  ASSERT_EQ(Plan({Write(dir, "t.csv", kSmall), "-o", plan}).exit_code, 0);
  EXPECT_TRUE(Slurp(plan).starts_with("size,id"));
  const mode_t mask = umask(0);
  umask(mask);
  struct stat info;
  ASSERT_EQ(stat(plan.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
}

TEST(PlanMemoryCli, AFullDiskIsAnError) {
  const TempDir dir;
  const ChildResult result =
      Plan({Write(dir, "t.csv", kSmall), "-o", "/dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("No space left on device"));
}

TEST(PlanMemoryCli, HelpShowsExamples) {
  const ChildResult result = Plan({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("sluicectl plan memory trace.csv"));
  EXPECT_THAT(result.out, HasSubstr("--time-limit FLOAT=60 "));
}

}  // namespace
}  // namespace sluice::client
