// A log that nobody reads.
#include "daemon/service/log/log.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>

#include "absl/time/clock.h"
#include "daemon/service/log/log_limiter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;

// Standard error is a pipe of one page for as long as it lives.
class StderrPipe {
 public:
  StderrPipe() : before_(dup(STDERR_FILENO)) {
    // A thread that is left behind may write after the reader has gone.
    signal(SIGPIPE, SIG_IGN);
    std::array<int, 2> ends;
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    const UniqueFd writer(ends[1]);
    EXPECT_GT(fcntl(writer.get(), F_SETPIPE_SZ, 4096), 0);
    dup2(writer.get(), STDERR_FILENO);
  }
  ~StderrPipe() { Restore(); }
  void Restore() { dup2(before_.get(), STDERR_FILENO); }
  // What comes until `text` has.
  std::string ReadUntil(const std::string& text) {
    std::string all;
    std::array<char, 4096> part;
    while (all.find(text) == std::string::npos) {
      const ssize_t got = read(reader_.get(), part.data(), part.size());
      if (got <= 0) break;
      all.append(part.data(), static_cast<size_t>(got));
    }
    return all;
  }

 private:
  const UniqueFd before_;
  UniqueFd reader_;
};

TEST(LogThread, NobodyWaitsForAReaderAndWhatIsDroppedIsCountedAndTold) {
  StderrPipe pipe;
  const uint64_t before = ReadLogLosses().dropped;
  const LogThread log;
  const std::string text(1000, 'x');
  const absl::Time start = absl::Now();
  for (int i = 0; i < 1000; ++i) WriteLog(LogLevel::kWarning, text);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_GT(ReadLogLosses().dropped, before + 500);
  EXPECT_THAT(pipe.ReadUntil("were dropped here"), HasSubstr(text));
}

TEST(LogThread, ItsEndWaitsForNoReader) {
  StderrPipe pipe;
  const absl::Time start = absl::Now();
  {
    const LogThread log;
    for (int i = 0; i < 100; ++i) {
      WriteLog(LogLevel::kWarning, std::string(1000, 'x'));
    }
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

TEST(LogThread, ItsEndWritesWhatIsQueued) {
  StderrPipe pipe;
  {
    const LogThread log;
    WriteLog(LogLevel::kWarning, "the last line");
  }
  EXPECT_THAT(pipe.ReadUntil("the last line"), HasSubstr("the last line"));
}

TEST(LogLimiter, BoundsTheLinesOfEachUserAndSaysHowManyAreMissing) {
  LogLimiter limiter;
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < LogLimiter::kBurst; ++i) {
    EXPECT_EQ(limiter.Admit(1, now), 0u);
  }
  for (int i = 0; i < 30; ++i) EXPECT_EQ(limiter.Admit(1, now), std::nullopt);
  EXPECT_EQ(limiter.Admit(2, now), 0u);  // each has his own
  now += absl::Seconds(1);
  EXPECT_EQ(limiter.Admit(1, now), 30u);
  EXPECT_EQ(limiter.Admit(1, now), 0u);
  // Forgotten once a whole burst may come again.
  now += absl::Hours(1);
  EXPECT_EQ(limiter.Admit(3, now), 0u);
  EXPECT_EQ(limiter.users(), 1u);
}

}  // namespace
}  // namespace sluice::daemon
