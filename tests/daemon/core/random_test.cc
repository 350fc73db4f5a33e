// Runs random stories on a core. After each instruction all invariants are
// checked, the core's saved state is read back and compared, and a second core
// that has read it must return equal effects. A failing story is shortened, and
// its instructions are printed, ready to be pasted into a test.
//
//   SLUICE_FUZZ_INSTRUCTIONS=10000000 daemon_core_test
//       --gtest_filter='CoreRandom.*'
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_story.h"
#include "tests/support/sanitizer.h"

namespace sluice::daemon {
namespace {

using ::testing::SizeIs;

constexpr int kStory = 4000;

// Totals of the stories, written by the processes that run them.
struct Sums {
  int granted = 0, changes = 0, waited = 0;
};

// Returns whether a story fails. Runs it in a child process, as a failed check
// ends the process.
bool Fails(const Instructions& instructions, CoreStory::Every every, Sums* sums,
           bool quiet) {
  const pid_t child = fork();
  if (child == 0) {
    if (quiet && freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    CoreStory story(every);
    story.Run(instructions);
    story.Finish();
    if (sums != nullptr) {
      sums->granted += story.granted();
      sums->changes += story.changes();
      sums->waited += story.waited();
    }
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) std::abort();
  return status != 0;
}

// Removes all instructions without which the story still fails: halves first,
// then smaller parts.
Instructions Shortest(Instructions failing,
                      const std::function<bool(const Instructions&)>& fails) {
  for (size_t part = failing.size() / 2; part > 0;) {
    bool shorter = false;
    for (size_t at = 0; at < failing.size();) {
      Instructions less(failing.begin(), failing.begin() + at);
      const size_t end = std::min(failing.size(), at + part);
      less.insert(less.end(), failing.begin() + end, failing.end());
      if (fails(less)) {
        failing = std::move(less);
        shorter = true;
      } else {
        at += part;
      }
    }
    if (!shorter || part > failing.size()) part /= 2;
  }
  return failing;
}

// Returns how many instructions to run: SLUICE_FUZZ_INSTRUCTIONS, else `usual`.
int64_t Wanted(int64_t usual) {
  const char* given = std::getenv("SLUICE_FUZZ_INSTRUCTIONS");
  int64_t wanted = usual;
  if (given != nullptr && !absl::SimpleAtoi(given, &wanted)) {
    ADD_FAILURE() << "SLUICE_FUZZ_INSTRUCTIONS is no number: " << given;
  }
  return wanted;
}

TEST(CoreRandom, RandomEventsKeepInvariantsAndSavedState) {
  const int64_t wanted = Wanted((testing::kSanitized ? 3 : 10) * kStory);
  // A long run checks the saved state less often, since checks after each
  // instruction make a run take ten times as long.
  const CoreStory::Every every = wanted > 10 * kStory
                                     ? CoreStory::Every{100, 1000}
                                     : CoreStory::Every{1, 100};
  auto* sums =
      static_cast<Sums*>(mmap(nullptr, sizeof(Sums), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(sums, MAP_FAILED);
  int64_t done = 0;
  for (uint32_t seed = 1; done < wanted; ++seed, done += kStory) {
    const Instructions story = RandomStory(seed, kStory);
    const int granted = sums->granted;
    if (!Fails(story, every, sums, /*quiet=*/true)) {
      // A drain, a reservation or outside memory may prevent grants for long.
      ASSERT_GT(sums->granted, granted + 10) << "story " << seed;
      continue;
    }
    const CoreStory::Every all{1, 10};
    const auto fails = [&](const Instructions& each) {
      return Fails(each, all, nullptr, /*quiet=*/true);
    };
    const Instructions shortest = fails(story) ? Shortest(story, fails) : story;
    Fails(shortest, all, nullptr, /*quiet=*/false);
    FAIL() << "story " << seed << " fails, and so does this part of it:\n"
           << ToText(shortest);
  }
  EXPECT_GT(sums->granted, 80 * done / kStory);
  EXPECT_GT(sums->changes, 2 * done / kStory);
  EXPECT_GT(sums->waited, 2 * done / kStory);
  munmap(sums, sizeof(Sums));
}

TEST(CoreRandom, AFailingSequenceIsShortened) {
  const Instructions story = RandomStory(7, 500);
  const auto fails = [](const Instructions& each) {
    int frees = 0, leases = 0;
    for (const Instruction& in : each) {
      leases += in.op == Op::kLease ? 1 : 0;
      frees += in.op == Op::kFree && leases > 1 ? 1 : 0;
    }
    return frees > 2;
  };
  ASSERT_TRUE(fails(story));
  EXPECT_THAT(Shortest(story, fails), SizeIs(5));
  EXPECT_EQ(ToText({{Op::kFree, 1, 2, 3}}), "{Op::kFree, 1, 2, 3},\n");
}

}  // namespace
}  // namespace sluice::daemon
