// Tests the C ABI with a scripted daemon. A C caller's mistake must be an error
// with a one-line message, never a crash.
#include <cmath>
#include <cstring>

#include "client/copy/ticket_table.h"
#include "client/sluice.h"
#include "gmock/gmock.h"
#include "proto/plan/codec.h"
#include "tests/client/c_abi_fixture.h"

namespace sluice::client {
namespace {

using ::testing::HasSubstr;

TEST_F(CAbiTest, ACallerLeasesCopiesAndWaits) {
  sluice_region *gpu, *host;
  ASSERT_EQ(sluice_region_lease(session_, SLUICE_GPU, 100'000, &gpu), 0);
  ASSERT_EQ(sluice_region_lease(session_, SLUICE_HOST, 100'000, &host), 0);
  EXPECT_EQ(sluice_region_size(gpu), 131'072u);
  std::memset(sluice_region_data(host), 0x42, 100'000);
  sluice_engine* engine;
  ASSERT_EQ(sluice_engine_start(session_, &engine), 0);
  sluice_ticket mark, ticket;
  ASSERT_EQ(sluice_engine_mark_compute(engine, &mark), 0);
  ASSERT_EQ(
      sluice_engine_copy(engine, SLUICE_HOST_TO_GPU, sluice_region_data(gpu),
                         sluice_region_data(host), 100'000, &mark, 1, &ticket),
      0);
  ASSERT_EQ(sluice_engine_wait(engine, ticket), 0);
  EXPECT_EQ(
      std::memcmp(sluice_region_data(gpu), sluice_region_data(host), 100'000),
      0);
  sluice_copy_stats stats = {.size = sizeof(stats)};
  ASSERT_EQ(sluice_engine_stats(engine, &stats), 0);
  EXPECT_EQ(stats.host_to_gpu_bytes, 100'000u);
  // A struct must hold at least its `size` field.
  for (const size_t size : {sizeof(stats.size), sizeof(stats.size) - 1}) {
    stats.size = size;
    EXPECT_EQ(sluice_engine_stats(engine, &stats),
              size == sizeof(stats.size) ? SLUICE_OK : SLUICE_INVALID_ARGUMENT);
  }
  sluice_engine_stop(engine);
  sluice_region_free(host);
  sluice_region_free(gpu);
}

TEST(CAbi, TheAttentionKernelIsThePlannersChoice) {
  const char* kernel = nullptr;
  sluice_attention_block block = {.size = sizeof(block),
                                  .kernel = nullptr,
                                  .keys = 4096,
                                  .capability = 90,
                                  .element_bytes = 2,
                                  .head_dim = 128,
                                  .value_dim = 128};
  ASSERT_EQ(sluice_attention_kernel(&block, &kernel), SLUICE_OK);
  EXPECT_STREQ(kernel, "cudnn");
  block.flash = 4;
  for (const auto& [traits, expected] :
       {std::pair<uint32_t, const char*>(SLUICE_BLOCK_PART, "flash (FA4)"),
        {SLUICE_BLOCK_WINDOW, "whole scores"},
        {SLUICE_BLOCK_INTERVALS, "whole scores"},
        {SLUICE_BLOCK_SOFTCAP, "whole scores"}}) {
    block.traits = traits;
    ASSERT_EQ(sluice_attention_kernel(&block, &kernel), SLUICE_OK);
    EXPECT_STREQ(kernel, expected) << traits;
  }
  block.kernel = "cudnn";
  block.element_bytes = 4;
  EXPECT_EQ(sluice_attention_kernel(&block, &kernel), SLUICE_UNIMPLEMENTED);
  EXPECT_THAT(sluice_last_error(), HasSubstr("cudnn takes at most 2 bytes"));
  block.kernel = "fast";
  EXPECT_EQ(sluice_attention_kernel(&block, &kernel), SLUICE_INVALID_ARGUMENT);
  block.size = 0;
  EXPECT_EQ(sluice_attention_kernel(&block, &kernel), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_attention_kernel(nullptr, &kernel), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_attention_kernel(&block, nullptr), SLUICE_INVALID_ARGUMENT);
}

TEST(CAbi, ThePlannerChoosesChunkSizes) {
  const sluice_chunk_trial trials[] = {
      {128, 4, 3}, {256, 2, 0.5}, {512, 1.95, 0.2}, {1024, 3, 0.1}};
  uint64_t next = 0, rows = 0;
  for (size_t count = 0; count <= 4; ++count) {
    ASSERT_EQ(sluice_chunk_choice(128, 1024, 0.05, trials, count, &next, &rows),
              SLUICE_OK);
    EXPECT_EQ(next, count == 4 ? 0 : trials[count].rows);
  }
  EXPECT_EQ(rows, 256u);
  EXPECT_EQ(sluice_chunk_choice(128, 1024, 0.05, nullptr, 1, &next, &rows),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_chunk_choice(128, 1024, 0.05, trials, 1, &next, nullptr),
            SLUICE_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, ARefusalHasTheDaemonsReason) {
  daemon_.SetScript([this](const wire::Message& m) {
    daemon_.ReplyError(m.packet.id(), absl::StatusCode::kResourceExhausted,
                       "asked 9 MiB, free 7 MiB");
    return true;
  });
  sluice_region* region;
  EXPECT_EQ(sluice_region_lease(session_, SLUICE_GPU, 9 << 20, &region),
            SLUICE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(region, nullptr);
  EXPECT_STREQ(sluice_last_error(), "asked 9 MiB, free 7 MiB");
}

TEST_F(CAbiTest, ALeaseRequestHasTheWaitOfItsCall) {
  uint32_t wait_ms = 7;
  daemon_.SetScript([&](const wire::Message& m) {
    wait_ms = m.packet.request().lease().wait_ms();
    return false;
  });
  sluice_region* region;
  const auto lease = [&](double wait) {
    return sluice_region_lease_within(session_, SLUICE_HOST, 1, wait, &region);
  };
  for (const double bad : {-1.0, 1e9, std::nan("")}) {
    EXPECT_EQ(lease(bad), SLUICE_INVALID_ARGUMENT);
  }
  ASSERT_EQ(lease(1.5), SLUICE_OK);
  EXPECT_EQ(wait_ms, 1500u);
  sluice_region_free(region);
  ASSERT_EQ(sluice_region_lease(session_, SLUICE_HOST, 1, &region), SLUICE_OK);
  EXPECT_EQ(wait_ms, 0u);
  sluice_region_free(region);
}

TEST_F(CAbiTest, BadArgumentsAreErrors) {
  sluice_region* region;
  EXPECT_EQ(sluice_region_lease(session_, 9, 1, &region),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_region_lease(nullptr, SLUICE_GPU, 1, &region),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_region_lease(session_, SLUICE_GPU, UINT64_MAX, &region),
            SLUICE_INVALID_ARGUMENT);
  sluice_limits limits = {};
  EXPECT_EQ(sluice_session_limits(session_, &limits), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(sluice_last_error(), HasSubstr("size"));
  EXPECT_EQ(sluice_engine_wait(nullptr, 0), SLUICE_INVALID_ARGUMENT);
  sluice_engine_stop(nullptr);
  sluice_region_free(nullptr);
  sluice_session_close(nullptr);
}

TEST_F(CAbiTest, TheShorterStructOfAnOlderCallerIsFilled) {
  struct {
    size_t size;
    uint64_t gpu_total;
    uint64_t canary;
  } old = {offsetof(sluice_limits, gpu_free), 0, 0x1234};
  ASSERT_EQ(
      sluice_session_limits(session_, reinterpret_cast<sluice_limits*>(&old)),
      0);
  EXPECT_EQ(old.gpu_total, 8u << 20);
  EXPECT_EQ(old.canary, 0x1234u);
}

TEST_F(CAbiTest, AReportReachesTheDaemonAndAPlanTheCaller) {
  sluice_step_report report = {.size = sizeof(report), .step = 2};
  EXPECT_EQ(sluice_session_report(session_, &report), 0);
  char* plan = nullptr;
  EXPECT_EQ(sluice_session_plan(session_, "{}", 1, &plan),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);

  plan::NodePlan answer;
  answer.profile_hash =
      plan::HashProfiles({plan::RankProfile{.kinds = {{.layers = 1}}}});
  answer.infeasible = "it is a test";
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_submit_profile()) return false;
    wire::Event event;
    event.mutable_plan_ready();
    const auto memfd = *wire::ToMemfd("plan", plan::Encode(answer));
    daemon_.SendEvent(event, {memfd.get()});
    return false;
  });
  const std::string profile =
      plan::Encode(plan::RankProfile{.kinds = {{.layers = 1}}});
  ASSERT_EQ(sluice_session_plan(session_, profile.c_str(), 20, &plan), 0)
      << sluice_last_error();
  EXPECT_THAT(plan, HasSubstr("it is a test"));
  sluice_string_free(plan);
  EXPECT_EQ(daemon_.count(wire::Request::kStepReport), 1);
}

TEST_F(CAbiTest, EventsReachTheHandler) {
  std::vector<std::pair<int, std::string>> events;
  sluice_session_on_event(
      session_,
      [](void* context, int kind, const char* detail) {
        static_cast<decltype(events)*>(context)->emplace_back(kind, detail);
      },
      &events);
  wire::Event event;
  event.mutable_evicted()->set_reason("drained");
  daemon_.SendEvent(event);
  sluice_region* region;  // the reply to this lease follows the event
  ASSERT_EQ(sluice_region_lease(session_, SLUICE_HOST, 1, &region), 0);
  sluice_region_free(region);
  ASSERT_EQ(sluice_session_on_event(session_, nullptr, nullptr), 0);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].first, SLUICE_EVENT_EVICTED);
  EXPECT_EQ(events[0].second, "drained");
}

TEST_F(CAbiTest, AChangedPlanIsAnsweredNotTaken) {
  bool taken = true;
  daemon_.SetScript([&](const wire::Message& m) {
    if (m.packet.request().has_plan_taken()) {
      taken = m.packet.request().plan_taken().taken();
    }
    return false;
  });
  wire::Event event;
  event.mutable_plan_changed()->set_plan_id(9);
  const auto memfd = *wire::ToMemfd("plan", plan::Encode(plan::NodePlan()));
  daemon_.SendEvent(event, {memfd.get()});
  sluice_region* region;  // the reply to this lease follows the event
  ASSERT_EQ(sluice_region_lease(session_, SLUICE_HOST, 1, &region), 0);
  sluice_region_free(region);
  daemon_.SetScript(nullptr);
  EXPECT_EQ(daemon_.count(wire::Request::kPlanTaken), 1);
  EXPECT_FALSE(taken);
}

TEST(TicketTable, UnknownAndDroppedTicketsCountAsReached) {
  TicketTable table;
  EXPECT_TRUE(table.Find(0).done());
  const uint64_t first = table.Add(Ticket());
  for (int i = 0; i < 100; ++i) {
    table.DropReached();
    table.Add(Ticket());
  }
  EXPECT_EQ(first, 1u);
  EXPECT_TRUE(table.Find(first).done());
  EXPECT_TRUE(table.Find(1'000'000).done());
}

}  // namespace
}  // namespace sluice::client
