// Tests memory that crosses processes, as between the daemon and its ranks.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/base/clock.h"
#include "tests/conformance/fixture.h"
#include "tests/conformance/peer.h"

namespace sluice::device {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

// Returns "CUDA_VISIBLE_DEVICES=N", which shows a process only the GPU that
// this process counts as `gpu`, perhaps within a CUDA_VISIBLE_DEVICES of its
// own.
std::string SeesOnly(size_t gpu) {
  const std::string name = "CUDA_VISIBLE_DEVICES";
  const char* const told = std::getenv(name.c_str());
  const std::vector<std::string> seen =
      absl::StrSplit(told == nullptr ? "" : told, ',', absl::SkipEmpty());
  return name + "=" + (seen.empty() ? std::to_string(gpu) : seen.at(gpu));
}

class ProcessConformance : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto peer = Peer::Start(GetParam(), directory_.path());
    ASSERT_THAT(peer, IsOk());
    peer_ = *std::move(peer);
  }

  std::unique_ptr<Peer> peer_;
};
INSTANTIATE_TEST_SUITE_P(Drivers, ProcessConformance,
                         ::testing::Values("sim", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(ProcessConformance, TwoProcessesSeeOneMemory) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    const Bytes size = Size(where);
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto memory,
                                Mapped::Create(driver_.get(), where, size));
    SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                                driver_->Export(memory->memory()));
    ASSERT_THAT(memory->Write(Pattern(size, 1)), IsOk());
    ASSERT_THAT(peer_->Import(fd, where, size), IsOk());
    EXPECT_THAT(peer_->Check(1), IsOk());
    EXPECT_THAT(peer_->Check(2), StatusIs(absl::StatusCode::kDataLoss));
    ASSERT_THAT(peer_->Fill(3), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, memory->Read());
    EXPECT_TRUE(read == Pattern(size, 3));
  }
}

// A launcher may show each rank only the rank's own GPU. The rank then counts
// that GPU as 0, whatever its number in the daemon.
TEST_P(ProcessConformance, APeerThatCountsGpusOtherwiseSeesTheSameMemory) {
  if (GetParam() != "cuda") return;  // sim counts GPUs alike everywhere
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto gpus, driver_->Devices());
  const size_t last = gpus.size() - 1;
  const Placement on_last{Placement::Kind::kGpu, last};
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto peer,
      Peer::Start(GetParam(), directory_.path(), {SeesOnly(last)}));
  const Bytes size = Size(on_last);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto memory,
                              Mapped::Create(driver_.get(), on_last, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                              driver_->Export(memory->memory()));
  ASSERT_THAT(memory->Write(Pattern(size, 1)), IsOk());
  ASSERT_THAT(peer->Import(fd, kOnGpu, size), IsOk());
  EXPECT_THAT(peer->Check(1), IsOk());
  ASSERT_THAT(peer->Fill(2), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, memory->Read());
  EXPECT_TRUE(read == Pattern(size, 2));
}

// The daemon assumes that cuMemGetInfo counts the memory of all processes, and
// shared memory once. Used bytes beyond the daemon's own memory count as held
// outside leases.
TEST_P(ProcessConformance, UsageCountsAllProcessesAndSharedMemoryOnce) {
  const Bytes size = 4 * Size(kOnGpu);
  const auto used = [&] { return driver_->Usage(kOnGpu)->used; };
  std::vector<std::unique_ptr<Mapped>> memories;
  Bytes before;
  for (int i = 0; i < 2; ++i) {  // the first round includes the peer's context
    SLUICE_ASSERT_OK_AND_ASSIGN(auto memory,
                                Mapped::Create(driver_.get(), kOnGpu, size));
    SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                                driver_->Export(memory->memory()));
    memories.push_back(std::move(memory));
    before = used();
    ASSERT_THAT(peer_->Import(fd, kOnGpu, size), IsOk());
    ASSERT_THAT(peer_->Fill(6), IsOk());
  }
  EXPECT_LT(used(), before + size);
  before = used();
  ASSERT_THAT(peer_->Create(kOnGpu, size), IsOk());
  EXPECT_GE(used(), before + size);
}

TEST_P(ProcessConformance, AKilledImporterLeavesTheMemoryToItsOwner) {
  const Bytes size = Size(kOnGpu);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto memory,
                              Mapped::Create(driver_.get(), kOnGpu, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                              driver_->Export(memory->memory()));
  ASSERT_THAT(peer_->Import(fd, kOnGpu, size), IsOk());
  ASSERT_THAT(peer_->Fill(4), IsOk());
  peer_->Kill();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, memory->Read());
  EXPECT_TRUE(read == Pattern(size, 4));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto next,
                              Peer::Start(GetParam(), directory_.path()));
  ASSERT_THAT(next->Import(fd, kOnGpu, size), IsOk());
  EXPECT_THAT(next->Check(4), IsOk());
}

TEST_P(ProcessConformance, AKilledCreatorLeavesTheMemoryToTheDescriptor) {
  for (const Placement where : {kOnGpu, kOnHost}) {
    const Bytes size = Size(where);
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto creator,
                                Peer::Start(GetParam(), directory_.path()));
    SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                                creator->Create(where, size));
    ASSERT_TRUE(fd);
    ASSERT_THAT(creator->Fill(5), IsOk());
    creator->Kill();
    SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                                driver_->Import(fd, where, size));
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const auto mapped, Mapped::Map(driver_.get(), memory, where, size));
    SLUICE_ASSERT_OK_AND_ASSIGN(const Content read, mapped->Read());
    EXPECT_TRUE(read == Pattern(size, 5));
  }
}

TEST_P(ProcessConformance, MemoryOfAKilledProcessIsFreeAgain) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const MemoryUse use, driver_->Usage(kOnGpu));
  const Bytes granularity = *driver_->Granularity(kOnGpu);
  // The size is more than half of the free memory, so two pieces do not fit.
  const Bytes size =
      (use.total - use.used) * 6 / 10 / granularity * granularity;
  ASSERT_THAT(peer_->Create(kOnGpu, size), IsOk());
  EXPECT_THAT(driver_->Create(kOnGpu, size),
              StatusIs(absl::StatusCode::kResourceExhausted));
  peer_->Kill();
  // NVIDIA's driver may free the memory some time after the process's end.
  const MonotonicClock clock;
  const absl::Time killed = clock.Now();
  const absl::Time deadline = killed + absl::Seconds(10);
  auto memory = driver_->Create(kOnGpu, size);
  while (!memory.ok() && clock.Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
    memory = driver_->Create(kOnGpu, size);
  }
  RecordProperty(
      "milliseconds_until_memory_was_back",
      static_cast<int>((clock.Now() - killed) / absl::Milliseconds(1)));
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT(driver_->Release(*memory), IsOk());
}

}  // namespace
}  // namespace sluice::device
