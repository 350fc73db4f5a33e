// Tests that every field of a request has a range, and that one step outside of
// it is refused.
#include <limits>

#include "proto/wire.h"
#include "tests/support/status_matchers.h"

namespace sluice::wire {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kBad = absl::StatusCode::kInvalidArgument;

Message HelloMessage() {
  Message message;
  message.packet.set_id(1);
  Hello* hello = message.packet.mutable_request()->mutable_hello();
  hello->set_protocol(kProtocols.newest);
  hello->set_job("demo");
  hello->set_rank(1);
  hello->set_world_size(4);
  hello->set_local_ranks(2);
  hello->set_gpu(1);
  return message;
}

Hello* HelloOf(Message& message) {
  return message.packet.mutable_request()->mutable_hello();
}

TEST(CheckRequest, AGoodHelloPasses) {
  EXPECT_THAT(CheckRequest(HelloMessage()), IsOk());
}

TEST(CheckRequest, AnotherProtocolVersionIsRefusedWithBothNumbers) {
  Message message = HelloMessage();
  HelloOf(message)->set_protocol(9);
  EXPECT_THAT(CheckRequest(message),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("protocol 9, this daemon protocol 1: upgrade "
                                 "the daemon")));
  // A newer client passes if it also speaks this daemon's protocol.
  HelloOf(message)->set_oldest_protocol(1);
  EXPECT_THAT(CheckRequest(message), IsOk());
}

MATCHER_P(Agreed, version, "") {
  return arg.ok() && *arg == static_cast<uint32_t>(version);
}

TEST(AgreeOnProtocol, TheNewestProtocolThatBothSpeakIsChosen) {
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(AgreeOnProtocol({1, 1}, {1, 1}), Agreed(1));
  EXPECT_THAT(AgreeOnProtocol({1, 3}, {2, 5}), Agreed(3));
  EXPECT_THAT(AgreeOnProtocol({2, 5}, {1, 3}), Agreed(3));
  EXPECT_THAT(AgreeOnProtocol({0, 2}, {2, 3}), Agreed(2));
  EXPECT_THAT(
      AgreeOnProtocol({1, 2}, {3, 4}),
      StatusIs(kRefused, HasSubstr("the client speaks protocols 1 to 2, this "
                                   "daemon protocols 3 to 4: upgrade the "
                                   "client's libsluice")));
  EXPECT_THAT(AgreeOnProtocol({3, 3}, {1, 2}),
              StatusIs(kRefused, HasSubstr("upgrade the daemon")));
  EXPECT_THAT(AgreeOnProtocol({0, 0}, {1, 1}), StatusIs(kRefused));
}

TEST(CheckRequest, JobNamesArePrintableAndShort) {
  for (const std::string& name :
       {std::string(), std::string(65, 'x'), std::string("a b"),
        std::string("a\"b"), std::string("a\nb"), std::string("\x7f")}) {
    Message message = HelloMessage();
    HelloOf(message)->set_job(name);
    EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("job")))
        << name;
  }
}

TEST(CheckRequest, RankAndGpuNumbersMustBeInRange) {
  Message message = HelloMessage();
  HelloOf(message)->set_rank(4);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("0 to 3")));
  message = HelloMessage();
  HelloOf(message)->set_world_size(0);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("world_size")));
  message = HelloMessage();
  HelloOf(message)->set_local_ranks(5);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("local_ranks")));
  message = HelloMessage();
  HelloOf(message)->set_gpu(1024);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("gpu")));
}

Message LeaseMessage(uint64_t bytes, uint32_t ordinal) {
  Message message;
  message.packet.set_id(2);
  Lease* lease = message.packet.mutable_request()->mutable_lease();
  lease->set_bytes(bytes);
  lease->set_ordinal(ordinal);
  return message;
}

TEST(CheckRequest, LeaseSizesArePositiveAndBounded) {
  EXPECT_THAT(CheckRequest(LeaseMessage(1, 0)), IsOk());
  EXPECT_THAT(CheckRequest(LeaseMessage(0, 0)), StatusIs(kBad));
  EXPECT_THAT(CheckRequest(LeaseMessage((1ull << 60) - 1, 1023)), IsOk());
  EXPECT_THAT(CheckRequest(LeaseMessage(1ull << 60, 0)), StatusIs(kBad));
  EXPECT_THAT(CheckRequest(LeaseMessage(1, 1024)), StatusIs(kBad));
  Message message = LeaseMessage(1, 0);
  message.packet.mutable_request()->mutable_lease()->set_kind(
      static_cast<Lease::Kind>(2));
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("kind")));
}

TEST(CheckRequest, TheUseOfAGpuIsBounded) {
  Message message;
  message.packet.set_id(1);
  GpuUse* use = message.packet.mutable_request()->mutable_gpu_use();
  EXPECT_THAT(CheckRequest(message), IsOk());
  use->set_used_bytes((uint64_t{1} << 60) - 1);
  EXPECT_THAT(CheckRequest(message), IsOk());
  use->set_used_bytes(uint64_t{1} << 60);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("used bytes")));
}

TEST(CheckRequest, DescriptorsMustMatchTheRequest) {
  Message message;
  message.packet.set_id(3);
  message.packet.mutable_request()->mutable_submit_profile();
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("must carry 1")));
  message.fds.emplace_back();
  EXPECT_THAT(CheckRequest(message), IsOk());
}

TEST(CheckRequest, TimesOfAReportAreFiniteButItsLossMayBeNan) {
  Message message;
  message.packet.set_id(4);
  StepReport* report = message.packet.mutable_request()->mutable_step_report();
  report->set_loss(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(CheckRequest(message), IsOk());
  report->set_seconds(std::numeric_limits<double>::infinity());
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad));
  report->set_seconds(-1);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad));
  // 1e308 is finite, but 1e308 + 1e308 is not; 3.2e7 is just above the limit.
  for (const double huge : {1e308, 3.2e7}) {
    report->set_seconds(huge);
    EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("seconds")));
  }
  report->set_seconds(3e7);
  EXPECT_THAT(CheckRequest(message), IsOk());
  report->add_map_seconds(-1);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("map_seconds")));
  report->set_map_seconds(0, 0.5);
  for (int i = 1; i < kMaxMaps; ++i) report->add_map_seconds(0);
  EXPECT_THAT(CheckRequest(message), IsOk());
  report->add_map_seconds(0);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("at most 64")));
  report->clear_map_seconds();
  report->set_seconds(1);
  report->set_tokens((1ull << 40) + 1);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("tokens")));
  report->set_tokens(0);
  report->set_bytes_h2d(1ull << 60);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad));
  report->set_bytes_h2d(0);
  EXPECT_THAT(CheckRequest(message), IsOk());
  // The daemon adds up mismatches, so a client's -1 must not reduce the sum.
  report->set_plan_mismatches(static_cast<uint64_t>(-1));
  EXPECT_THAT(CheckRequest(message),
              StatusIs(kBad, HasSubstr("plan_mismatches")));
  report->set_plan_mismatches(0);
  report->set_step(static_cast<uint64_t>(-1));
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("step")));
}

TEST(CheckRequest, OnlyRequestsWithAnIdAndABodyPass) {
  Message message = HelloMessage();
  message.packet.set_id(0);
  EXPECT_THAT(CheckRequest(message), StatusIs(kBad, HasSubstr("id")));
  Message reply;
  reply.packet.set_id(1);
  reply.packet.mutable_reply()->mutable_noted();
  EXPECT_THAT(CheckRequest(reply), StatusIs(kBad));
  Message empty;
  empty.packet.set_id(1);
  empty.packet.mutable_request();
  EXPECT_THAT(CheckRequest(empty), StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace sluice::wire
