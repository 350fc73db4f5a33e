// Tests the functions of ABI 2, and that clients of ABI 1 are still served.
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "proto/plan/codec.h"
#include "tests/client/c_abi_fixture.h"

extern "C" int RunAbi1Client(const char* socket);

namespace sluice::client {
namespace {

using ::testing::HasSubstr;

TEST(CAbi1, AClientOfAbi1Runs) {
  ScriptedDaemon daemon;
  daemon.limits().slots[0].limit_bytes[kH2d] = 1 << 30;
  daemon.limits().slots[0].limit_bytes[kD2h] = 1 << 30;
  EXPECT_EQ(RunAbi1Client(daemon.options().socket.c_str()), 0)
      << sluice_last_error();
}

class CAbi2Test : public CAbiTest {
 protected:
  CAbi2Test() {
    EXPECT_EQ(sluice_region_lease(session_, SLUICE_GPU, kSize, &gpu_), 0);
    EXPECT_EQ(sluice_region_lease(session_, SLUICE_HOST, kSize, &host_), 0);
    EXPECT_EQ(sluice_engine_start(session_, &engine_), 0);
  }
  ~CAbi2Test() override {
    sluice_engine_stop(engine_);
    sluice_region_free(host_);
    sluice_region_free(gpu_);
  }

  std::byte* gpu() { return static_cast<std::byte*>(sluice_region_data(gpu_)); }
  std::byte* host() {
    return static_cast<std::byte*>(sluice_region_data(host_));
  }

  static constexpr size_t kSize = 65'536;
  sluice_region *gpu_ = nullptr, *host_ = nullptr;
  sluice_engine* engine_ = nullptr;
};

TEST_F(CAbi2Test, ReachedReturnsWithoutWaiting) {
  int reached = -1;
  ASSERT_EQ(sluice_engine_reached(engine_, 0, &reached), 0);
  EXPECT_EQ(reached, 1);
  // With a limit of 0 bytes the copy cannot start, so a wait would not end.
  daemon_.limits().slots[0].limit_bytes[kH2d] = 0;
  daemon_.Beat();  // while the heartbeat is stale, copies need no grant
  sluice_ticket ticket;
  ASSERT_EQ(sluice_engine_copy(engine_, SLUICE_HOST_TO_GPU, gpu(), host(),
                               kSize, nullptr, 0, &ticket),
            0);
  daemon_.Beat();
  ASSERT_EQ(sluice_engine_reached(engine_, ticket, &reached), 0);
  EXPECT_EQ(reached, 0);
  daemon_.limits().slots[0].limit_bytes[kH2d] = 1 << 30;
  ASSERT_EQ(sluice_engine_wait(engine_, ticket), 0);
  ASSERT_EQ(sluice_engine_reached(engine_, ticket, &reached), 0);
  EXPECT_EQ(reached, 1);
}

TEST_F(CAbi2Test, OneTicketCoversScatteredPieces) {
  std::iota(reinterpret_cast<unsigned char*>(host()),
            reinterpret_cast<unsigned char*>(host()) + kSize, 0);
  const std::array<sluice_piece, 3> pieces = {{{gpu() + 100, host(), 50},
                                               {nullptr, nullptr, 0},
                                               {gpu(), host() + 1000, 7}}};
  sluice_ticket ticket;
  ASSERT_EQ(
      sluice_engine_copy_pieces(engine_, SLUICE_HOST_TO_GPU, pieces.data(),
                                pieces.size(), nullptr, 0, &ticket),
      0);
  ASSERT_EQ(sluice_engine_wait(engine_, ticket), 0);
  EXPECT_EQ(std::memcmp(gpu() + 100, host(), 50), 0);
  EXPECT_EQ(std::memcmp(gpu(), host() + 1000, 7), 0);
  EXPECT_EQ(gpu()[7], std::byte{0});
  EXPECT_EQ(gpu()[150], std::byte{0});
  sluice_copy_stats stats = {.size = sizeof(stats)};
  ASSERT_EQ(sluice_engine_stats(engine_, &stats), 0);
  EXPECT_EQ(stats.host_to_gpu_bytes, 57u);
}

TEST_F(CAbi2Test, ASimulatedGpuHasNoStreamToUse) {
  int stream = 0;
  for (void* const named : {static_cast<void*>(&stream), (void*)nullptr}) {
    EXPECT_EQ(sluice_engine_use_stream(engine_, named), SLUICE_UNIMPLEMENTED);
    EXPECT_THAT(sluice_last_error(), HasSubstr("calling thread"));
  }
  sluice_ticket mark;  // the engine still works
  ASSERT_EQ(sluice_engine_mark_compute(engine_, &mark), 0);
  EXPECT_EQ(sluice_engine_wait(engine_, mark), 0);
  sluice_limits limits = {.size = sizeof(limits), .device = 7};
  ASSERT_EQ(sluice_session_limits(session_, &limits), 0);
  EXPECT_EQ(limits.device, -1);
}

TEST_F(CAbi2Test, BadArgumentsAreErrors) {
  sluice_ticket ticket;
  const sluice_piece nowhere = {nullptr, host(), 8};
  const sluice_piece huge = {gpu(), host(), uint64_t{1} << 60};
  for (const sluice_piece& piece : {nowhere, huge}) {
    EXPECT_EQ(sluice_engine_copy_pieces(engine_, SLUICE_HOST_TO_GPU, &piece, 1,
                                        nullptr, 0, &ticket),
              SLUICE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(sluice_engine_copy_pieces(engine_, SLUICE_HOST_TO_GPU, nullptr, 1,
                                      nullptr, 0, &ticket),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_engine_reached(engine_, 0, nullptr),
            SLUICE_INVALID_ARGUMENT);
  int reached;
  EXPECT_EQ(sluice_engine_reached(nullptr, 0, &reached),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_engine_use_stream(nullptr, nullptr),
            SLUICE_INVALID_ARGUMENT);
  uint64_t id;
  EXPECT_EQ(sluice_session_changed_plan(session_, nullptr, &id),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_session_answer_change(nullptr, 1, 1, ""),
            SLUICE_INVALID_ARGUMENT);
}

class ChangesTest : public CAbiTest {
 protected:
  explicit ChangesTest(bool takes_changes = true) : CAbiTest(takes_changes) {
    daemon_.SetScript([this](const wire::Message& m) {
      if (m.packet.request().has_plan_taken()) {
        answers_.push_back(m.packet.request().plan_taken());
      }
      return false;
    });
  }
  ~ChangesTest() override { daemon_.SetScript(nullptr); }

  void Change(uint64_t id) {
    plan::NodePlan plan;
    plan.id = PlanId(id);
    plan.infeasible = "it is a test";
    plan.profile_hash =
        plan::HashProfiles({plan::RankProfile{.kinds = {{.layers = 1}}}});
    wire::Event event;
    event.mutable_plan_changed()->set_plan_id(id);
    const auto memfd = *wire::ToMemfd("plan", plan::Encode(plan));
    daemon_.SendEvent(event, {memfd.get()});
    AwaitEvents();
  }

  std::vector<wire::PlanTaken> answers_;  // received by the daemon
};

TEST_F(ChangesTest, AChangedPlanIsTakenAndAnswered) {
  char* plan = nullptr;
  uint64_t id = 0;
  ASSERT_EQ(sluice_session_changed_plan(session_, &plan, &id), 0);
  EXPECT_EQ(plan, nullptr);

  Change(9);
  EXPECT_TRUE(answers_.empty());
  ASSERT_EQ(sluice_session_changed_plan(session_, &plan, &id), 0);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(id, 9u);
  EXPECT_THAT(plan, HasSubstr("it is a test"));
  sluice_string_free(plan);

  ASSERT_EQ(sluice_session_answer_change(session_, id, 1, "step 7"), 0);
  AwaitEvents();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].plan_id(), 9u);
  EXPECT_TRUE(answers_[0].taken());
  EXPECT_EQ(answers_[0].note(), "step 7");
  ASSERT_EQ(sluice_session_changed_plan(session_, &plan, &id), 0);
  EXPECT_EQ(plan, nullptr);
}

TEST_F(ChangesTest, OnlyTheNewestPlanIsOfferedAndARefusalIsSent) {
  Change(9);
  Change(10);
  char* plan = nullptr;
  uint64_t id = 0;
  ASSERT_EQ(sluice_session_changed_plan(session_, &plan, &id), 0);
  EXPECT_EQ(id, 10u);
  sluice_string_free(plan);
  ASSERT_EQ(sluice_session_answer_change(session_, id, 0, nullptr), 0);
  AwaitEvents();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].plan_id(), 10u);
  EXPECT_FALSE(answers_[0].taken());
}

class NoChangesTest : public ChangesTest {
 protected:
  NoChangesTest() : ChangesTest(/*takes_changes=*/false) {}
};

TEST_F(NoChangesTest, AChangedPlanIsRefusedIfTheCallerTakesNoChanges) {
  Change(9);
  AwaitEvents();  // until the daemon has read the refusal
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].plan_id(), 9u);
  EXPECT_FALSE(answers_[0].taken());
  char* plan = nullptr;
  uint64_t id = 0;
  ASSERT_EQ(sluice_session_changed_plan(session_, &plan, &id), 0);
  EXPECT_EQ(plan, nullptr);
}

}  // namespace
}  // namespace sluice::client
