// Tests which events of the core are written to the log.
#include "daemon/service/log/event_writer.h"

#include <fmt/format.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kOwnUid = 999;
const absl::Time kNow = absl::FromUnixSeconds(1000);

std::string Written(EventWriter& writer, const EventLog& log) {
  ::testing::internal::CaptureStderr();
  writer.WriteNew(log, kNow);
  return ::testing::internal::GetCapturedStderr();
}

TEST(EventWriter, EachEventIsWrittenOnceWithItsRequest) {
  EventLog log;
  EventWriter writer(kOwnUid);
  log.Add(kNow, EventKind::kRefuse, "no room", {1, ""},
          {SessionId(12), RequestId(7)});
  EXPECT_THAT(Written(writer, log),
              HasSubstr(" warning refuse: no room (s12.r7)\n"));
  EXPECT_EQ(Written(writer, log), "");
}

// Guards against counting lost events as dropped lines, with a message that the
// log was not read.
TEST(EventWriter, EventsLostFromTheRingAreReported) {
  EventLog log(/*capacity=*/4);
  EventWriter writer(kOwnUid);
  const uint64_t dropped = ReadLogLosses().dropped;
  for (int i = 0; i < 6; ++i) {
    log.Add(kNow, EventKind::kEvict, fmt::format("event {}", i), {});
  }
  const std::string text = Written(writer, log);
  EXPECT_THAT(text, HasSubstr("2 events are not in the log: more than 4 came "
                              "at once"));
  EXPECT_THAT(text, Not(HasSubstr("event 1\n")));
  EXPECT_THAT(text, HasSubstr("event 2\n"));
  EXPECT_EQ(ReadLogLosses().dropped, dropped);
}

TEST(EventWriter, AUsersLinesAreLimitedAndTheDaemonsOwnAreNot) {
  EventLog log(/*capacity=*/1000);
  EventWriter writer(kOwnUid);
  for (int i = 0; i < 300; ++i) {
    log.Add(kNow, EventKind::kRefuse, fmt::format("user's {};", i), {1, ""});
    log.Add(kNow, EventKind::kStart, fmt::format("own {};", i), {});
  }
  const uint64_t suppressed = ReadLogLosses().suppressed;
  const std::string text = Written(writer, log);
  EXPECT_THAT(text, HasSubstr("user's 199;"));
  EXPECT_THAT(text, Not(HasSubstr("user's 200;")));
  EXPECT_THAT(text, HasSubstr("own 299;"));
  EXPECT_EQ(ReadLogLosses().suppressed, suppressed + 100);
}

}  // namespace
}  // namespace sluice::daemon
