#include "client/torch/memory/region_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "client/torch/memory/region_pool.h"
#include "proto/base/poison.h"

namespace sluice::runtime {
namespace {

using ::testing::HasSubstr;

// A region of plain memory with an allocator in it, armed.
class RegionAllocatorTest : public ::testing::Test {
 protected:
  static constexpr Bytes kSize = MiB(1);

  ~RegionAllocatorTest() override {
    allocator_.Disarm();
    EXPECT_EQ(allocator_.stats().used, Bytes(0));  // nothing leaked
  }
  bool Inside(const at::Tensor& tensor) const {
    const auto* at = static_cast<const std::byte*>(tensor.data_ptr());
    return at >= memory_.get() && at < memory_.get() + kSize.size();
  }
  int64_t OffsetOf(const at::Tensor& tensor) const {
    return static_cast<const std::byte*>(tensor.data_ptr()) - memory_.get();
  }
  static at::Tensor Make(Bytes size) {
    return at::empty({size.count()}, at::kByte);
  }
  // Records one run of `body` as segment `kind`.
  template <typename Body>
  std::vector<plan::SegmentKind> Record(const std::string& kind, Body body) {
    allocator_.RecordSegments(true);
    {
      const SegmentScope scope(&allocator_, kind);
      body();
    }
    allocator_.RecordSegments(false);
    return allocator_.TakeRecorded();
  }

  struct FreeMemory {
    void operator()(std::byte* block) const { std::free(block); }
  };
  std::unique_ptr<std::byte, FreeMemory> memory_{
      static_cast<std::byte*>(std::aligned_alloc(64, kSize.size()))};
  RegionAllocator allocator_{at::kCPU, memory_.get(), kSize};
};

std::vector<plan::SegmentPlan> PlanOf(const std::string& name, int64_t base,
                                      std::vector<int64_t> offsets) {
  plan::SegmentPlan segment{.name = name, .base = Bytes(base)};
  for (int64_t offset : offsets) {
    segment.placement.offsets.push_back(Bytes(offset));
  }
  return {segment};
}

TEST_F(RegionAllocatorTest, WhileArmedEveryTensorIsInTheRegionAndCounted) {
  const at::Tensor outside = at::zeros({4});
  allocator_.Arm();
  {
    const at::Tensor a = Make(Bytes(1000)), b = at::zeros({3});
    EXPECT_TRUE(Inside(a) && Inside(b));
    EXPECT_EQ(OffsetOf(a) % 64, 0);
    EXPECT_EQ(allocator_.stats().used, Bytes(1024 + 64));
    at::Tensor none = at::empty({0});
    EXPECT_EQ(allocator_.stats().used, Bytes(1024 + 64));
  }
  EXPECT_FALSE(Inside(outside));
  EXPECT_EQ(allocator_.stats().peak, Bytes(1024 + 64));
  allocator_.Disarm();
  EXPECT_FALSE(Inside(at::zeros({4})));
}

TEST_F(RegionAllocatorTest, RunningOutOfMemoryNamesTheSizesAndLeaksNothing) {
  allocator_.Arm();
  const at::Tensor held = Make(KiB(768));
  try {
    const SegmentScope scope(&allocator_, "loss.full");
    Make(KiB(512));
    FAIL() << "must throw";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        HasSubstr("asked 512 KiB, used 768 KiB of 1 MiB, planned area 0 B, "
                  "largest free 256 KiB, in segment 'loss.full'"));
  }
  EXPECT_EQ(allocator_.stats().used, KiB(768));
  EXPECT_NO_THROW(Make(KiB(256)));
}

TEST_F(RegionAllocatorTest, FreesFromOtherThreadsAndAfterDisarmingAreCounted) {
  allocator_.Arm();
  at::Tensor crossing = Make(KiB(100)), late = Make(KiB(100)), born_elsewhere;
  std::thread([&] {
    crossing.reset();
    born_elsewhere = Make(KiB(50));
  }).join();
  EXPECT_TRUE(Inside(born_elsewhere));
  EXPECT_EQ(allocator_.stats().used, KiB(150));
  allocator_.Disarm();
  late.reset();
  born_elsewhere.reset();
  EXPECT_EQ(allocator_.stats().used, Bytes(0));
}

TEST_F(RegionAllocatorTest, ATensorMayOutliveTheAllocator) {
  auto other =
      std::make_unique<RegionAllocator>(at::kCPU, memory_.get(), KiB(512));
  other->Arm();
  at::Tensor survivor = at::full({4}, 3.0);
  other.reset();
  EXPECT_EQ(survivor.sum().item<double>(), 12);
  survivor.reset();
}

TEST_F(RegionAllocatorTest, ManyThreadsNeverShareAByte) {
  allocator_.Arm();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::mt19937 random(t);
      std::vector<at::Tensor> live;
      for (int i = 0; i < 2000; ++i) {
        if (live.size() > 8 || (random() % 2 && !live.empty())) {
          const at::Tensor gone = live.back();
          live.pop_back();
          ASSERT_TRUE(gone.eq(t + 1).all().item<bool>());
        } else {
          live.push_back(
              at::full({int64_t(random() % 5000 + 1)}, t + 1, at::kByte));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RegionAllocatorTest, HostScopesAllocateOutsideTheRegionUpToACap) {
  allocator_.Arm();
  {
    const HostScope scope("data loader");
    const at::Tensor host = Make(KiB(64));
    EXPECT_FALSE(Inside(host));
    EXPECT_EQ(allocator_.stats().host_used, KiB(64));
    try {
      Make(MiB(16));
      FAIL() << "must throw";
    } catch (const c10::OutOfMemoryError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("'data loader' asked 16 MiB with 64 KiB in use"));
    }
    const HostScope inner("checkpoint");
  }
  EXPECT_EQ(allocator_.stats().host_used, Bytes(0));
  EXPECT_TRUE(Inside(Make(KiB(1))));
  HostScope::SetCap(Bytes(0));
  {
    const HostScope scope("check");
    EXPECT_NO_THROW(Make(MiB(32)));
  }
  HostScope::SetCap(MiB(16));
}

TEST_F(RegionAllocatorTest, ASegmentIsRecordedInRequestOrder) {
  allocator_.Arm();
  at::Tensor before = Make(KiB(1)), survivor;
  const auto kinds = Record("ffn.forward.full", [&] {
    at::Tensor a = Make(Bytes(100));
    survivor = Make(Bytes(200));
    a.reset();
    before.reset();  // allocated before the segment, so no event
    at::Tensor c = Make(Bytes(300));
  });
  ASSERT_EQ(kinds.size(), 1);
  EXPECT_EQ(kinds[0].name, "ffn.forward.full");
  EXPECT_EQ(kinds[0].executions, 1);
  EXPECT_GT(kinds[0].seconds, 0);
  const plan::Trace& trace = kinds[0].trace;
  ASSERT_EQ(trace.buffers.size(), 3);
  EXPECT_EQ(trace.end, 5);
  const int64_t want[3][3] = {{128, 0, 2}, {256, 1, 5}, {320, 3, 4}};
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(trace.buffers[k].size, Bytes(want[k][0]));
    EXPECT_EQ(trace.buffers[k].lower, want[k][1]);
    EXPECT_EQ(trace.buffers[k].upper, want[k][2]);
  }
}

TEST_F(RegionAllocatorTest, APlanPutsEachRequestAtItsPlace) {
  allocator_.Arm();
  const at::Tensor weights = Make(KiB(4));  // stays at the top
  const auto body = [&](std::vector<int64_t>* offsets) {
    at::Tensor a = Make(Bytes(100)), b = Make(Bytes(200));
    if (offsets) *offsets = {OffsetOf(a), OffsetOf(b)};
    const at::Tensor elsewhere = [] {
      at::Tensor made;
      std::thread([&] { made = Make(Bytes(100)); }).join();
      return made;
    }();
    EXPECT_GE(OffsetOf(elsewhere), 640);  // other threads use the pool
  };
  const auto kinds = Record("qkv", [&] { body(nullptr); });
  // The other thread's request is not part of the trace.
  ASSERT_EQ(kinds[0].trace.buffers.size(), 2);
  ASSERT_TRUE(
      allocator_.SetPlan(PlanOf("qkv", 64, {320, 0}), kinds, Bytes(640)).ok());
  for (int run = 0; run < 3; ++run) {
    const SegmentScope scope(&allocator_, "qkv");
    std::vector<int64_t> offsets;
    body(&offsets);
    EXPECT_THAT(offsets, ::testing::ElementsAre(64 + 320, 64));
  }
  EXPECT_EQ(allocator_.stats().planned, Bytes(640));
  EXPECT_EQ(allocator_.stats().planned_allocations, 6);
  EXPECT_EQ(allocator_.stats().mismatches, 0);
}

TEST_F(RegionAllocatorTest, AMismatchFallsBackToThePoolAndIsCounted) {
  allocator_.Arm();
  const auto kinds = Record("post", [] { Make(Bytes(100)), Make(Bytes(100)); });
  ASSERT_TRUE(
      allocator_.SetPlan(PlanOf("post", 0, {0, 0}), kinds, Bytes(128)).ok());
  const SegmentScope scope(&allocator_, "post");
  const at::Tensor planned = Make(Bytes(100));
  const at::Tensor held = Make(Bytes(100));   // its place is not free
  const at::Tensor beyond = Make(Bytes(64));  // the plan has two requests
  EXPECT_EQ(OffsetOf(planned), 0);
  EXPECT_GE(OffsetOf(held), 128);
  EXPECT_GE(OffsetOf(beyond), 128);
  EXPECT_EQ(allocator_.stats().mismatches, 2);
}

TEST_F(RegionAllocatorTest, EachSegmentIsRecordedFromItsOwnBeginning) {
  allocator_.Arm();
  for (int time = 0; time < 2; ++time) {
    const auto kinds = Record("post", [] { Make(Bytes(100)); });
    EXPECT_EQ(kinds[0].trace.alignment, Bytes(64));
    EXPECT_EQ(kinds[0].trace.end, 2) << "a birth and an end";
  }
}

TEST_F(RegionAllocatorTest, APlanThatFitsNeitherRegionNorRecordIsRefused) {
  allocator_.Arm();
  const auto kinds = Record("post", [] { Make(Bytes(100)); });
  const at::Tensor held = Make(KiB(600));
  EXPECT_EQ(allocator_.SetPlan(PlanOf("post", 0, {0}), kinds, KiB(500)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(allocator_.SetPlan(PlanOf("post", 0, {0, 0}), kinds, KiB(1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator_.SetPlan(PlanOf("post", 0, {0}), kinds, Bytes(64)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator_.SetPlan(PlanOf("post", 0, {32}), kinds, KiB(1)).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(allocator_.SetPlan(PlanOf("post", 0, {0}), kinds, KiB(1)).ok());
  at::Tensor alive;
  {
    const SegmentScope scope(&allocator_, "post");
    alive = Make(Bytes(100));
  }
  EXPECT_EQ(allocator_.SetPlan({}, {}, Bytes(0)).code(),
            absl::StatusCode::kFailedPrecondition);
  alive.reset();
  EXPECT_TRUE(allocator_.SetPlan({}, {}, Bytes(0)).ok());
  EXPECT_EQ(allocator_.stats().planned, Bytes(0));
}

// Runs random programs under a plan made for another program: no two live
// blocks may share a byte.
TEST_F(RegionAllocatorTest, LiveBlocksNeverOverlapIfRequestsMismatchThePlan) {
  allocator_.Arm();
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto size = [&] { return Bytes(int64_t(random() % 8 + 1) * 64); };
    const auto kinds = Record("x", [&] {
      for (int i = 0; i < 20; ++i) Make(size());
    });
    std::vector<int64_t> offsets;
    for (int i = 0; i < 20; ++i) offsets.push_back(random() % 32 * 64);
    ASSERT_TRUE(
        allocator_.SetPlan(PlanOf("x", 0, offsets), kinds, KiB(4)).ok());
    std::vector<std::pair<at::Tensor, uint8_t>> live;
    for (int run = 0; run < 5; ++run) {
      const SegmentScope scope(&allocator_, "x");
      for (int i = 0; i < 25; ++i) {
        const uint8_t mark = random() % 256;
        live.emplace_back(Make(size()).fill_(mark), mark);
        while (live.size() > 6 || (!live.empty() && random() % 2)) {
          const size_t gone = random() % live.size();
          ASSERT_TRUE(
              live[gone].first.eq(live[gone].second).all().item<bool>());
          live.erase(live.begin() + gone);
        }
      }
    }
    live.clear();
    ASSERT_TRUE(allocator_.SetPlan({}, {}, Bytes(0)).ok());
  }
  EXPECT_GT(allocator_.stats().planned_allocations, 0);
  EXPECT_GT(allocator_.stats().mismatches, 0);
}

TEST_F(RegionAllocatorTest, RunsAndBlockLivesAreRecordedForTheReport) {
  allocator_.Arm();
  at::Tensor old = Make(KiB(1));
  allocator_.RecordTimeline(true);
  {
    const SegmentScope scope(&allocator_, "loss.full");
    Make(KiB(2));
  }
  const std::vector<SegmentRun> runs = allocator_.TakeRuns();
  ASSERT_EQ(runs.size(), 1);
  EXPECT_EQ(runs[0].kind, "loss.full");
  const std::vector<BlockRecord> records = allocator_.TakeBlocks();
  ASSERT_EQ(records.size(), 2);
  EXPECT_LE(runs[0].start_s, records[0].born_s);
  EXPECT_GE(runs[0].end_s, records[0].died_s);
  EXPECT_EQ(records[0].size, KiB(2));
  EXPECT_EQ(records[0].segment, "loss.full");
  EXPECT_GE(records[0].died_s, records[0].born_s);
  EXPECT_LT(records[1].died_s, records[1].born_s);  // alive
  allocator_.RecordTimeline(false);
}

TEST_F(RegionAllocatorTest, FreedBlocksArePoisoned) {
  if (!PoisonsBuffers()) GTEST_SKIP() << "SLUICE_POISON is not set";
  allocator_.Arm();
  const float* dead = at::zeros({4}).data_ptr<float>();
  EXPECT_TRUE(std::isnan(dead[0]));
}

// Compares the pool with a map of live blocks, and checks its invariants after
// each call.
TEST(RegionPool, NeverGivesAByteTwiceAndJoinsFreedBlocks) {
  std::mt19937 random(7);
  RegionPool pool(KiB(64));
  std::map<int64_t, int64_t> live;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2) {
      const Bytes size(int64_t(random() % 64 + 1) * 64);
      const auto offset =
          random() % 4 ? pool.Allocate(size) : pool.AllocateLow(size);
      if (offset.has_value()) {
        const auto next = live.lower_bound(offset->count());
        if (next != live.end()) {
          ASSERT_LE((*offset + size).count(), next->first);
        }
        if (next != live.begin()) {
          ASSERT_LE(std::prev(next)->first + std::prev(next)->second,
                    offset->count());
        }
        live[offset->count()] = size.count();
      } else {
        ASSERT_LT(pool.largest_free(), size);
      }
    } else if (!live.empty()) {
      auto gone = std::next(live.begin(), random() % live.size());
      pool.Free(Bytes(gone->first), Bytes(gone->second));
      live.erase(gone);
    }
    pool.CheckInvariants();
  }
  for (const auto& [offset, size] : live) pool.Free(Bytes(offset), Bytes(size));
  EXPECT_EQ(pool.largest_free(), KiB(64));
}

}  // namespace
}  // namespace sluice::runtime
