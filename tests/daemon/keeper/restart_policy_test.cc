#include <csignal>
#include <optional>
#include <vector>

#include "daemon/keeper/daemon_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

using ::testing::ElementsAre;

constexpr DaemonEnd kKilled = {.exit_code = 0, .signal = SIGKILL};
const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(RestartPolicy, ADeathIsFollowedByAStartAtOnce) {
  for (const DaemonEnd& end :
       {kKilled, DaemonEnd{.exit_code = 0, .signal = SIGSEGV},
        DaemonEnd{.exit_code = 1}, DaemonEnd{.exit_code = 0},
        DaemonEnd{.exit_code = 127}}) {
    const auto verdict = RestartPolicy().Decide(end, {.asked = false}, kStart);
    EXPECT_EQ(verdict.exit, std::nullopt) << end.Text();
    EXPECT_EQ(verdict.pause, absl::ZeroDuration());
    EXPECT_FALSE(verdict.slower_now);
  }
}

TEST(RestartPolicy, TheExitStatusOfARequestedEndIsPassedOn) {
  const auto status = [](const DaemonEnd& end) {
    return RestartPolicy().Decide(end, {.asked = true}, kStart).exit;
  };
  EXPECT_EQ(status({.exit_code = 0}), 0);
  EXPECT_EQ(status({.exit_code = 1}), 1);
  EXPECT_EQ(status(kKilled), 128 + SIGKILL);
}

TEST(RestartPolicy, TheExitStatusOfBadInputIsPassedOn) {
  EXPECT_EQ(RestartPolicy().Decide({.exit_code = 2}, {}, kStart).exit, 2);
}

// Guards against losing the ranks' memory because a port is taken.
TEST(RestartPolicy, BadInputCountsAsADeathWhileDescriptorsAreHeld) {
  const DaemonEnd refused = {.exit_code = 2};
  EXPECT_EQ(RestartPolicy().Decide(refused, {.holds = true}, kStart).exit,
            std::nullopt);
  EXPECT_EQ(RestartPolicy()
                .Decide(refused, {.asked = true, .holds = true}, kStart)
                .exit,
            2);
}

TEST(RestartPolicy, ManyDeathsAreFollowedByGrowingPausesLoggedOnce) {
  RestartPolicy policy;
  std::vector<absl::Duration> pauses;
  int said = 0;
  absl::Time now = kStart;
  for (int i = 0; i < 12; ++i) {
    const auto verdict = policy.Decide(kKilled, {}, now);
    pauses.push_back(verdict.pause);
    said += verdict.slower_now;
    now += absl::Milliseconds(10) + verdict.pause;
  }
  const auto ms = [](int n) { return absl::Milliseconds(n); };
  EXPECT_THAT(pauses,
              ElementsAre(ms(0), ms(0), ms(0), ms(0), ms(0), ms(50), ms(100),
                          ms(200), ms(400), ms(800), ms(1000), ms(1000)));
  EXPECT_EQ(said, 1);
  // The pause stays while deaths follow each other, and ends after a calm time.
  for (int i = 0; i < 30; ++i) {
    const auto verdict = policy.Decide(kKilled, {}, now);
    EXPECT_GE(verdict.pause, ms(800));
    EXPECT_FALSE(verdict.slower_now);
    now += verdict.pause;
  }
  now += absl::Seconds(11);
  EXPECT_EQ(policy.Decide(kKilled, {}, now).pause, absl::ZeroDuration());
}

TEST(RestartPolicy, TextNamesTheExitStatusOrSignal) {
  EXPECT_EQ(kKilled.Text(), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ((DaemonEnd{.exit_code = 3}).Text(), "exited with status 3");
}

}  // namespace
}  // namespace sluice::daemon
