// The rings never lose, mix up or overwrite bytes that are still wanted, on a
// link slow enough that every mistake shows.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "client/torch/stream/chunk_io.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;

constexpr int64_t kNumbers = 4096;  // 16 KiB: 8 ms on the link
constexpr int64_t kSize = kNumbers * 4;

class StreamIo : public ::testing::Test {
 protected:
  StreamIo() {
    EXPECT_THAT(
        device::CreateSimNode(directory_.path(),
                              {.gpus = {{MiB(1), "pcie0", NumaIndex(0)}},
                               .links = {{"pcie0", 2e6, 2e6}},
                               .host_memory = MiB(1)}),
        IsOk());
    driver_ = *device::OpenSimDriver(directory_.path());
    engine_ =
        *client::CopyEngine::Start({.driver = driver_.get(), .slice = KiB(4)});
    for (ChunkBuffer& buffer : host_) {
      buffer.data = reinterpret_cast<std::byte*>(
          std::aligned_alloc(64, static_cast<size_t>(kSize)));
      buffer.size = kSize;
    }
  }
  ~StreamIo() override {
    engine_.reset();
    for (ChunkBuffer& buffer : host_) std::free(buffer.data);
  }

  // Sends a chunk full of `value` to `to`.
  void Send(StagingRing& staging, float value, ChunkBuffer& to) {
    ASSERT_THAT(staging.Begin(), IsOk());
    const at::Tensor chunk = staging.Take({kNumbers}, at::kFloat);
    chunk.fill_(value);
    staging.Send(chunk, to);
    staging.Flush("out");
  }
  StagingRing Staging(int slots) {
    return StagingRing(engine_.get(), {at::kCPU, out_, kSize, slots}, {});
  }
  FetchRing Ring(int slots) {
    return FetchRing(engine_.get(), {at::kCPU, in_, kSize, slots}, {});
  }
  static bool Holds(const at::Tensor& chunk, float value) {
    return at::equal(chunk, at::full({kNumbers}, value));
  }

  const testing::TempDir directory_;
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<client::CopyEngine> engine_;
  ChunkBuffer host_[4];
  alignas(64) std::byte out_[2 * kSize], in_[3 * kSize];
};

TEST_F(StreamIo, AStagingSlotIsNotRewrittenBeforeItsBytesLeft) {
  StagingRing staging = Staging(2);
  for (int i = 0; i < 4; ++i) Send(staging, float(i), host_[i]);
  ASSERT_THAT(engine_->Drain(), IsOk());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(reinterpret_cast<float*>(host_[i].data)[0], float(i));
    EXPECT_EQ(reinterpret_cast<float*>(host_[i].data)[kNumbers - 1], float(i));
  }
}

TEST_F(StreamIo, AFetchSeesWhatWasSentBeforeIt) {
  StagingRing staging = Staging(2);
  FetchRing ring = Ring(2);
  for (int i = 0; i < 4; ++i) Send(staging, float(i), host_[i]);
  Fetches fetches(&ring, 4, "in", [&](int64_t k, Fetch& fetch) {
    fetch.Whole(host_[k]);
    return true;
  });
  for (int i = 0; i < 4; ++i) {
    auto slot = fetches.Next();
    ASSERT_THAT(slot, IsOk());
    EXPECT_TRUE(Holds((*slot)->Take({kNumbers}, at::kFloat), float(i)));
    fetches.Done();
  }
}

TEST_F(StreamIo, HostBytesAreNotRewrittenBeforeTheyWereFetched) {
  StagingRing staging = Staging(2);
  FetchRing ring = Ring(2);
  Send(staging, 1, host_[0]);
  Fetches fetches(&ring, 1, "in", [&](int64_t, Fetch& fetch) {
    fetch.Whole(host_[0]);
    return true;
  });
  Send(staging, 2, host_[0]);
  auto slot = fetches.Next();
  ASSERT_THAT(slot, IsOk());
  EXPECT_TRUE(Holds((*slot)->Take({kNumbers}, at::kFloat), 1));
  ASSERT_THAT(engine_->Drain(), IsOk());
  EXPECT_EQ(reinterpret_cast<float*>(host_[0].data)[kNumbers - 1], 2);
}

TEST_F(StreamIo, AFetchedSlotIsNotRefilledBeforeItsLastUse) {
  StagingRing staging = Staging(2);
  FetchRing ring = Ring(1);
  Send(staging, 1, host_[0]);
  Send(staging, 2, host_[1]);
  Fetches fetches(&ring, 2, "in", [&](int64_t k, Fetch& fetch) {
    fetch.Whole(host_[k]);
    return true;
  });
  auto slot = fetches.Next();
  ASSERT_THAT(slot, IsOk());
  const at::Tensor chunk = (*slot)->Take({kNumbers}, at::kFloat);
  // Its last use is a copy out, as of dq: the slot waits for that.
  fetches.Done(StagingRing::SendNow(*engine_, chunk, host_[2], "back"));
  ASSERT_THAT(fetches.Next(), IsOk());
  ASSERT_THAT(engine_->Drain(), IsOk());
  EXPECT_EQ(reinterpret_cast<float*>(host_[2].data)[kNumbers - 1], 1);
  EXPECT_TRUE(Holds(chunk, 2));
}

TEST_F(StreamIo, ASlotToWhichNothingIsFetchedWaitsForItsLastUseToo) {
  FetchRing ring = Ring(1);
  Fetches fetches(&ring, 2, "in", [](int64_t, Fetch& fetch) {
    fetch.Field(kSize);
    return true;
  });
  for (const int k : {0, 1}) {
    auto slot = fetches.Next();
    ASSERT_THAT(slot, IsOk());
    const at::Tensor chunk = (*slot)->Take({kNumbers}, at::kFloat);
    chunk.fill_(float(k));
    fetches.Done(StagingRing::SendNow(*engine_, chunk, host_[k], "back"));
  }
  ASSERT_THAT(engine_->Drain(), IsOk());
  EXPECT_EQ(reinterpret_cast<float*>(host_[0].data)[kNumbers - 1], 0);
}

TEST_F(StreamIo, AProgramStopsWhereItsDataWasNotSentYet) {
  StagingRing staging = Staging(2);
  FetchRing ring = Ring(3);
  Send(staging, 1, host_[0]);
  bool sent = false;
  Fetches fetches(&ring, 2, "in", [&](int64_t k, Fetch& fetch) {
    if (k == 1 && !sent) return false;
    fetch.Whole(host_[k]);
    return true;
  });
  ASSERT_THAT(fetches.Next(), IsOk());
  fetches.Done();
  Send(staging, 2, host_[1]);
  sent = true;
  auto slot = fetches.Next();
  ASSERT_THAT(slot, IsOk());
  EXPECT_TRUE(Holds((*slot)->Take({kNumbers}, at::kFloat), 2));
}

#ifdef SLUICE_POISON
TEST_F(StreamIo, BytesThatHaveNotArrivedReadAsNaN) {
  StagingRing staging = Staging(2);
  FetchRing ring = Ring(1);
  Send(staging, 1, host_[0]);
  Send(staging, 2, host_[1]);
  Fetches fetches(&ring, 2, "in", [&](int64_t k, Fetch& fetch) {
    fetch.Whole(host_[k]);
    return true;
  });
  auto slot = fetches.Next();
  ASSERT_THAT(slot, IsOk());
  const at::Tensor chunk = (*slot)->Take({kNumbers}, at::kFloat);
  fetches.Done();  // the next fetch was issued, its bytes are on their way
  EXPECT_TRUE(chunk[kNumbers - 1].isnan().item<bool>());
}
#endif

}  // namespace
}  // namespace sluice::runtime
