// Tests CBC in a helper process: with the real helper program, and with
// programs that fail.
#include "planner/memory/mip_process.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "planner/memory/plan_memory.h"
#include "tests/planner/traces.h"
#include "tests/support/no_pidfds.h"
#include "tests/support/places.h"

namespace sluice::planner {
namespace {

constexpr int64_t kMagic = 0x736c7569636d6970;  // as in mip_process.cc

// A program that runs a line of shell.
class Program {
 public:
  explicit Program(const std::string& line)
      : path_(::testing::TempDir() + "mip_helper_" + std::to_string(getpid()) +
              "_" + std::to_string(count_++)) {
    std::ofstream(path_) << "#!/bin/sh\n" << line << "\n";
    chmod(path_.c_str(), 0700);
  }
  ~Program() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static inline int count_ = 0;
  const std::string path_;
};

MemoryPlan PlanBy(const std::string& program, double limit_s = 20) {
  const auto plan =
      PlanMemory(AboveMaxLive(), {.time_limit = absl::Seconds(limit_s),
                                  .use_search = false,
                                  .mip_program = program});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(MipProcess, TheHelperProvesWhatThisProcessWould) {
  const MemoryPlan here = PlanBy("");
  const MemoryPlan there = PlanBy(InBuild("bin/sluice-worker"));
  EXPECT_EQ(there.proved_by, "cbc");
  EXPECT_EQ(there.lower_bound, here.lower_bound);
  EXPECT_EQ(there.peak, here.peak);
}

TEST(MipProcess, AHelperThatFailsCostsOnlyTheProof) {
  const Program crash("kill -SEGV $$");
  const Program fails("exit 1");
  const Program silent("exit 0");
  const Program prints("echo 17 17 17 17");
  for (const std::string& program :
       {crash.path(), fails.path(), silent.path(), prints.path(),
        std::string("/no/such/program")}) {
    const MemoryPlan plan = PlanBy(program);
    EXPECT_TRUE(plan.valid) << program;
    EXPECT_EQ(plan.lower_bound, Bytes(17 * 64)) << program;
    EXPECT_EQ(plan.proved_by, plan.optimal() ? "max_live" : "none") << program;
  }
}

TEST(MipProcess, OnlyAValidPlacementIsTakenFromTheHelper) {
  const Problem problem = Normalise(AboveMaxLive());
  Offsets start, stacked;
  int64_t top = 0;
  for (const Item& item : problem.items) {
    stacked.push_back(top);
    start.push_back(top + 1);
    top += item.size;
  }
  const auto answer = [&](const Offsets& offsets) {
    std::vector<int64_t> words = {kMagic, problem.max_live,
                                  static_cast<int64_t>(offsets.size())};
    words.insert(words.end(), offsets.begin(), offsets.end());
    const std::string path = ::testing::TempDir() + "mip_answer";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(words.size() * sizeof(int64_t)));
    const Program says("cat " + path);
    return SolveMip(problem, start, 1, absl::Seconds(20), says.path(),
                    [] { return false; });
  };
  const MipResult taken = answer(stacked);
  EXPECT_EQ(taken.offsets, stacked);
  EXPECT_EQ(taken.bound, problem.max_live);
  const MipResult refused = answer(Offsets(stacked.size(), 0));
  EXPECT_EQ(refused.offsets, std::nullopt);
  EXPECT_EQ(refused.bound, 1);
}

TEST(MipProcess, AHelperThatHangsIsKilledAtTheLimit) {
  const Program hangs("exec sleep 100");
  const auto start = std::chrono::steady_clock::now();
  const MemoryPlan plan = PlanBy(hangs.path(), 0.5);
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(plan.valid);
  EXPECT_EQ(plan.proved_by, "none");
  EXPECT_EQ(plan.stopped_by, "time");
  EXPECT_LT(took.count(), 5);
}

// Without a pidfd the wait must still end when the helper ends, not at the
// deadline.
TEST(MipProcess, WithoutPidfdsTheHelpersAnswerIsUsedAtOnce) {
  const auto plan = [] {
    if (!testing::RefusePidfds(ENOSYS)) _exit(77);
    const auto start = std::chrono::steady_clock::now();
    const bool proved =
        PlanBy(InBuild("bin/sluice-worker"), 60).proved_by == "cbc";
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    _exit(proved && took.count() < 30 ? 0 : 1);
  };
  EXPECT_EXIT(plan(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::planner
