// Tests a log without a reader, a log that journald reads, and line limits.
#include "daemon/service/log/log.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "absl/time/clock.h"
#include "daemon/service/log/event_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/unique_fd.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;

// Makes standard error a pipe of one page while the object lives.
class StderrPipe {
 public:
  StderrPipe() : before_(dup(STDERR_FILENO)) {
    // A thread of an earlier test may write after the reader has gone.
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
  // Reads until `text` has come, and returns all that was read.
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

TEST(LogThread, WritingNeverWaitsAndDroppedLinesAreCounted) {
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

TEST(LogThread, TheDestructorDoesNotWaitForAReader) {
  StderrPipe pipe;
  const absl::Time start = absl::Now();
  {
    const LogThread log;
    for (int i = 0; i < 100; ++i) {
      WriteLog(LogLevel::kWarning, std::string(1000, 'x'));
    }
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(LogThread, TheDestructorWritesQueuedLines) {
  StderrPipe pipe;
  {
    const LogThread log;
    WriteLog(LogLevel::kWarning, "the last line");
  }
  EXPECT_THAT(pipe.ReadUntil("the last line"), HasSubstr("the last line"));
}

TEST(LogLimiter, EachUsersLinesAreLimitedAndSuppressedLinesCounted) {
  LogLimiter limiter;
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < LogLimiter::kBurst; ++i) {
    EXPECT_EQ(limiter.Admit(1, now), 0u);
  }
  for (int i = 0; i < 30; ++i) EXPECT_EQ(limiter.Admit(1, now), std::nullopt);
  EXPECT_EQ(limiter.Admit(2, now), 0u);  // each user has a limit of its own
  now += absl::Seconds(1);
  EXPECT_EQ(limiter.Admit(1, now), 30u);
  EXPECT_EQ(limiter.Admit(1, now), 0u);
  // A user is forgotten once a whole burst would be allowed again.
  now += absl::Hours(1);
  EXPECT_EQ(limiter.Admit(3, now), 0u);
  EXPECT_EQ(limiter.users(), 1u);
}

// Stands for journald: a socket that receives datagrams.
class FakeJournal {
 public:
  FakeJournal() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().c_str(), path().size());
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)),
              0);
  }
  std::string path() const { return folder_.File("socket"); }
  std::string Next() {
    std::string entry(1 << 16, '\0');
    const ssize_t got = recv(fd_.get(), entry.data(), entry.size(), 0);
    entry.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return entry;
  }

 private:
  const testing::TempDir folder_;
  const UniqueFd fd_;
};

TEST(JournalSocket, AFieldWithALineBreakIsEncodedWithItsLength) {
  EXPECT_EQ(JournalSocket::Encode({{"MESSAGE", "a=b"}, {"PRIORITY", "6"}}),
            "MESSAGE=a=b\nPRIORITY=6\n");
  const std::string two = JournalSocket::Encode({{"MESSAGE", "a\nb"}});
  EXPECT_EQ(two, std::string("MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\n", 20));
}

TEST(JournalSocket, JournaldReadsStderrIfJournalStreamNamesIt) {
  struct stat info;
  ASSERT_EQ(fstat(STDERR_FILENO, &info), 0);
  const auto stream = [&](uint64_t inode) {
    return std::to_string(info.st_dev) + ":" + std::to_string(inode);
  };
  EXPECT_TRUE(JournalSocket::ReadsStderr(stream(info.st_ino).c_str()));
  EXPECT_FALSE(JournalSocket::ReadsStderr(stream(info.st_ino + 1).c_str()));
  EXPECT_FALSE(JournalSocket::ReadsStderr(nullptr));
}

TEST(Log, JournaldGetsOneEntryPerLineWithItsFields) {
  std::optional<FakeJournal> reader(std::in_place);
  SLUICE_ASSERT_OK_AND_ASSIGN(JournalSocket socket,
                              JournalSocket::Make(reader->path()));
  UseJournal(std::move(socket));
  WriteLog(LogLevel::kWarning, "refuse: no room",
           {.event = "refuse", .request = "s12.r7", .uid = 1000});
  EXPECT_EQ(reader->Next(),
            "MESSAGE=refuse: no room\nPRIORITY=4\nSYSLOG_IDENTIFIER=sluiced\n"
            "SLUICE_EVENT=refuse\nSLUICE_REQUEST=s12.r7\nSLUICE_UID=1000\n");
  WriteLog(LogLevel::kInfo, "stopped");
  EXPECT_EQ(reader->Next(),
            "MESSAGE=stopped\nPRIORITY=6\nSYSLOG_IDENTIFIER=sluiced\n");
  // If journald is gone, the line goes to stderr, with the request.
  reader.reset();
  StderrPipe pipe;
  WriteLog(LogLevel::kInfo, "attach: rank 0", {.request = "s1.r2"});
  EXPECT_THAT(pipe.ReadUntil("\n"),
              HasSubstr(" info attach: rank 0 (s1.r2)\n"));
}

}  // namespace
}  // namespace sluice::daemon
