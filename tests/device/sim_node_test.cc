#include <unistd.h>

#include <limits>
#include <string>

#include "kernels/device/sim/state.h"
#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"

namespace sluice::device {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::sluice::testing::TempDir;
using ::testing::HasSubstr;

TEST(SimNodeConfig, AMissingNodeIsNamedWithWhatToDo) {
  const TempDir directory;
  EXPECT_THAT(OpenSimDriver(directory.File("none")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("start sluiced, or make one")));
}

TEST(SimNodeConfig, AGpuOnAnUnknownLinkIsRefused) {
  const TempDir directory;
  SimConfig config = SmallNode();
  config.gpus[1].link = "pcie9";
  EXPECT_THAT(CreateSimNode(directory.path(), config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("GPU 1 copies over link 'pcie9'")));
}

TEST(SimNodeConfig, InvalidValuesAreRefused) {
  const TempDir directory;
  const auto refuses = [&](auto change) {
    SimConfig config = SmallNode();
    change(config);
    return absl::IsInvalidArgument(CreateSimNode(directory.path(), config));
  };
  EXPECT_TRUE(refuses([](SimConfig& c) { c.gpus.clear(); }));
  EXPECT_TRUE(refuses([](SimConfig& c) { c.granularity = Bytes(1000); }));
  EXPECT_TRUE(refuses([](SimConfig& c) { c.numa_nodes = 0; }));
  EXPECT_TRUE(refuses([](SimConfig& c) { c.numa_nodes = 1; }));
  EXPECT_TRUE(refuses([](SimConfig& c) { c.host_memory = Bytes(0); }));
  EXPECT_TRUE(
      refuses([](SimConfig& c) { c.links[0].h2d_bytes_per_second = -1; }));
  EXPECT_TRUE(refuses([](SimConfig& c) { c.links[1].name = "shared"; }));
}

TEST(SimNodeConfig, CountsAndNamesBeyondTheirLimitsAreRefused) {
  const auto fine = [](auto change) {
    SimConfig config = SmallNode();
    change(config);
    const absl::Status status = CheckSimConfig(config);
    EXPECT_EQ(absl::IsInvalidArgument(status), !status.ok());
    return status.ok();
  };
  const auto links = [&](size_t count) {
    return fine([&](SimConfig& c) {
      while (c.links.size() < count) {
        c.links.push_back({std::to_string(c.links.size()), 0, 0});
      }
    });
  };
  EXPECT_TRUE(links(kSimMaxLinks));
  EXPECT_FALSE(links(kSimMaxLinks + 1));
  const auto gpus = [&](size_t count) {
    return fine([&](SimConfig& c) { c.gpus.resize(count, c.gpus[0]); });
  };
  EXPECT_TRUE(gpus(kSimMaxGpus));
  EXPECT_FALSE(gpus(kSimMaxGpus + 1));
  const auto name = [&](size_t length) {
    return fine([&](SimConfig& c) {
      c.links.push_back({std::string(length, 'x'), 0, 0});
    });
  };
  EXPECT_FALSE(name(0));
  EXPECT_TRUE(name(kSimNameLength - 1));
  EXPECT_FALSE(name(kSimNameLength));
  EXPECT_TRUE(fine([](SimConfig& c) { c.numa_nodes = kSimMaxNuma; }));
  EXPECT_FALSE(fine([](SimConfig& c) { c.numa_nodes = kSimMaxNuma + 1; }));
  const auto granule = [&](int64_t more) {
    return fine([&](SimConfig& c) {
      c.host_memory = c.granularity + Bytes(more);
      c.gpus[0].memory = c.granularity + Bytes(more);
    });
  };
  EXPECT_TRUE(granule(0));
  EXPECT_FALSE(granule(-1));
  EXPECT_FALSE(
      fine([](SimConfig& c) { c.gpus[0].memory = c.granularity - Bytes(1); }));
  EXPECT_FALSE(fine([](SimConfig& c) {
    c.links[0].d2h_bytes_per_second = std::numeric_limits<double>::infinity();
  }));
}

TEST_F(SimTest, ANodeInUseIsNotReplaced) {
  EXPECT_THAT(
      CreateSimNode(directory_.path(), SmallNode()),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in use")));
  driver_.reset();
  node_.reset();
  EXPECT_THAT(CreateSimNode(directory_.path(), SmallNode()), IsOk());
}

TEST_F(SimTest, ANodeReturnsItsConfiguration) {
  const SimConfig config = node_->config();
  ASSERT_EQ(config.gpus.size(), 3u);
  EXPECT_EQ(config.gpus[2].memory, MiB(4));
  EXPECT_EQ(config.gpus[2].link, "own");
  EXPECT_EQ(config.gpus[2].numa, NumaIndex(1));
  EXPECT_EQ(config.numa_nodes, 2);
  EXPECT_EQ(config.host_memory, MiB(16));
}

TEST_F(SimTest, AGpuHoldsNoMoreThanItsMemory) {
  ASSERT_THAT(driver_->Create(kGpu0, MiB(6)), IsOk());
  EXPECT_THAT(driver_->Create(kGpu0, MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("4 MiB asked on GPU 0, 6 MiB of 8 MiB used")));
  EXPECT_THAT(driver_->Create(kGpu0, MiB(2)), IsOk());
  EXPECT_EQ(Used(kGpu0), MiB(8));
}

TEST_F(SimTest, NumaNodesShareTheHostMemory) {
  ASSERT_THAT(driver_->Create(kHost0, MiB(10)), IsOk());
  EXPECT_THAT(driver_->Create(kHost1, MiB(8)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(driver_->Create(kHost1, MiB(6)), IsOk());
}

TEST_F(SimTest, MemoryCountsUntilItsLastMappingIsGone) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kGpu0, MiB(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                              driver_->Reserve(MiB(2), kGpu0.kind));
  ASSERT_THAT(driver_->Map(address, MiB(2), memory), IsOk());
  ASSERT_THAT(driver_->Release(memory), IsOk());
  EXPECT_EQ(Used(kGpu0), MiB(2));
  ASSERT_THAT(driver_->Unmap(address, MiB(2)), IsOk());
  EXPECT_EQ(Used(kGpu0), Bytes(0));
}

TEST_F(SimTest, ClosingADriverGivesItsMemoryBack) {
  ASSERT_THAT(driver_->Create(kGpu0, MiB(8)), IsOk());
  driver_.reset();
  EXPECT_EQ(Used(kGpu0), Bytes(0));
}

TEST_F(SimTest, AKilledProcessGivesItsMemoryBack) {
  driver_.reset();
  const auto child = Child::Fork([this] {
    const auto driver = Open();
    EXPECT_THAT(driver->Create(kGpu0, MiB(8)), IsOk());
    std::puts("created");
    std::fflush(stdout);
    pause();
  });
  ASSERT_TRUE(child->WaitForOutput("created", absl::Seconds(20)));
  driver_ = Open();
  EXPECT_EQ(Used(kGpu0), MiB(8));
  EXPECT_THAT(driver_->Create(kGpu0, MiB(8)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  child->Kill(SIGKILL);
  child->Join();
  EXPECT_THAT(driver_->Create(kGpu0, MiB(8)), IsOk());
}

TEST_F(SimTest, MemoryOfADeadCreatorStaysWithItsImporter) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kGpu0, MiB(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, driver_->Export(memory));
  const auto importer = Open();
  ASSERT_THAT(importer->Import(fd, kGpu0, MiB(2)), IsOk());
  driver_.reset();
  EXPECT_EQ(Used(kGpu0), MiB(2));
}

TEST_F(SimTest, TheNthCallFailsOnceOnAnyDriver) {
  ASSERT_THAT(node_->FailCall("Create", 2), IsOk());
  EXPECT_THAT(driver_->Create(kGpu0, MiB(1)), IsOk());
  const auto other = Open();
  EXPECT_THAT(other->Create(kGpu0, MiB(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("failure injected")));
  EXPECT_THAT(driver_->Create(kGpu0, MiB(1)), IsOk());
}

TEST_F(SimTest, OnlyDriverCallsAndGpusOfTheNodeCanBeMadeToFail) {
  EXPECT_THAT(node_->FailCall("Creat", 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no driver call 'Creat'")));
  EXPECT_THAT(node_->FailCall("Create", 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(node_->LoseGpu(DeviceIndex(SmallNode().gpus.size())),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("there is no GPU 3")));
}

TEST_F(SimTest, EveryCallOnALostGpuIsUnavailable) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kGpu0, MiB(1)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(0)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  ASSERT_THAT(node_->LoseGpu(DeviceIndex(0)), IsOk());
  const auto lost =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("GPU 0 is lost"));
  EXPECT_THAT(driver_->Create(kGpu0, MiB(1)), lost);
  EXPECT_THAT(driver_->Export(memory), lost);
  EXPECT_THAT(driver_->CreateStream(DeviceIndex(0)), lost);
  EXPECT_THAT(driver_->RecordEvent(event, stream), lost);
  EXPECT_THAT(driver_->SynchronizeStream(stream), lost);
  std::byte bytes[2];
  EXPECT_THAT(driver_->CopyAsync(bytes, bytes + 1, Bytes(1),
                                 CopyDirection::kHostToDevice, stream),
              lost);
  EXPECT_THAT(driver_->FillAsync(bytes, std::byte{1}, Bytes(1), stream), lost);
  EXPECT_THAT(driver_->Release(memory), IsOk());
  EXPECT_THAT(driver_->CreateStream(DeviceIndex(1)), IsOk());
}

}  // namespace
}  // namespace sluice::device
