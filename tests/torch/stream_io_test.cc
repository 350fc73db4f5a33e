// Tests that the rings never lose, mix up or overwrite bytes that are still
// needed. On sim, the link is so slow that every mistake shows. The fake CUDA
// driver has no links; its race detector finds mistakes.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <memory>
#include <set>
#include <vector>

#include "client/torch/stream/chunk_io.h"
#include "proto/base/poison.h"
#include "tests/support/status_matchers.h"
#include "tests/torch/test_node.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;

constexpr int64_t kNumbers = 4096;  // 16 KiB: 8 ms on the link
constexpr int64_t kSize = kNumbers * 4;

class StreamIo : public ::testing::Test {
 protected:
  // `speed` is in bytes per second.
  explicit StreamIo(double speed = 2e6)
      : node_(1, speed, speed),
        engine_(*node_.StartCopies(0, KiB(4))),
        out_(Slots(2, TestDevice())),
        in_(Slots(3, TestDevice())) {
    for (ChunkBuffer& buffer : host_) {
      arenas_.push_back(std::make_unique<Arena>(Bytes(kSize), node_));
      buffer.data = arenas_.back()->data();
      buffer.size = kSize;
    }
  }
  ~StreamIo() override {
    engine_.reset();
    for (const auto& arena : arenas_) EXPECT_TRUE(arena->GuardIntact());
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
    return StagingRing(engine_.get(), Memory(out_, slots), {});
  }
  FetchRing Ring(int slots) {
    return FetchRing(engine_.get(), Memory(in_, slots), {});
  }
  static bool Holds(const at::Tensor& chunk, float value) {
    return at::equal(chunk.cpu(), at::full({kNumbers}, value));
  }
  static at::Tensor Slots(int slots, at::Device device) {
    return at::empty({slots, kSize},
                     at::TensorOptions().dtype(at::kByte).device(device));
  }
  static RingMemory Memory(const at::Tensor& of, int slots) {
    return {of.device(), static_cast<std::byte*>(of.data_ptr()), kSize, slots};
  }

  const TestNode node_;
  std::unique_ptr<client::CopyEngine> engine_;
  const at::Tensor out_, in_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  ChunkBuffer host_[4];
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

TEST_F(StreamIo, AStagingSlotIsFilledWhileTheOtherSlotsBytesLeave) {
  StagingRing staging = Staging(2);
  std::set<void*> places;
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(staging.Begin(), IsOk());
    const at::Tensor chunk = staging.Take({kNumbers}, at::kFloat);
    places.insert(chunk.data_ptr());
    staging.Send(chunk, host_[i]);
    staging.Flush("out");
  }
  EXPECT_EQ(places.size(), 2);
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
  // The slot's last use is a copy out, as for dq, so the slot waits for the
  // copy.
  fetches.Done(StagingRing::SendNow(*engine_, chunk, host_[2],
                                    engine_->MarkCompute(), "back"));
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
    fetches.Done(StagingRing::SendNow(*engine_, chunk, host_[k],
                                      engine_->MarkCompute(), "back"));
  }
  ASSERT_THAT(engine_->Drain(), IsOk());
  EXPECT_EQ(reinterpret_cast<float*>(host_[0].data)[kNumbers - 1], 0);
}

TEST_F(StreamIo, FetchesStopAtDataThatIsNotSentYet) {
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

// A chunk's copy takes 330 ms, longer than a busy machine delays the check.
class StreamIoOnASlowLink : public StreamIo {
 protected:
  StreamIoOnASlowLink() : StreamIo(5e4) {}
};

TEST_F(StreamIoOnASlowLink, BytesThatHaveNotArrivedReadAsNaN) {
  if (!PoisonsBuffers()) GTEST_SKIP() << "SLUICE_POISON is not set";
  if (OnCuda()) GTEST_SKIP() << "only sim can slow a link";
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

}  // namespace
}  // namespace sluice::runtime
