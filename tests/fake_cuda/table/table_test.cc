// Regression tests of the cuda table, on the fake driver, which detects the
// table's mistakes.
#include <gmock/gmock.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/table/opened_table.h"
#include "tests/support/status_matchers.h"

namespace sluice::device {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr DeviceIndex kGpu0(0), kGpu1(1);
constexpr Placement kOnGpu0{Placement::Kind::kGpu, 0};
constexpr Placement kOnGpu1{Placement::Kind::kGpu, 1};
constexpr Placement kOnHost{Placement::Kind::kHost, 0};

class CudaTable : public OpenedTable {
 protected:
  // Returns memory that `gpu` may access, mapped until the driver is destroyed.
  absl::StatusOr<Address> Mapped(Placement where, DeviceIndex gpu) {
    SLUICE_ASSIGN_OR_RETURN(const Bytes size, driver_->Granularity(where));
    SLUICE_ASSIGN_OR_RETURN(const Memory memory, driver_->Create(where, size));
    SLUICE_ASSIGN_OR_RETURN(const Address at,
                            driver_->Reserve(size, where.kind));
    SLUICE_RETURN_IF_ERROR(driver_->Map(at, size, memory));
    SLUICE_RETURN_IF_ERROR(driver_->SetAccess(at, size, gpu));
    return at;
  }
};

TEST_F(CudaTable, TheDriversEndReleasesObjectsInTheirContexts) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(kGpu1));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  ASSERT_THAT(driver_->RecordEvent(event, stream), IsOk());
  ASSERT_THAT(Mapped(kOnHost, kGpu1), IsOk());
}

// The table itself maps host memory that is a memfd, so the fake driver would
// not report addresses that the table leaks.
TEST_F(CudaTable, MemfdAddressesAreReleasedOnRequestAndAtTheDriversEnd) {
  Open("host_numa=0");
  const auto is_mapped = [](Address at) {
    unsigned char resident = 0;
    return mincore(at, 1, &resident) == 0;
  };
  SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes size, driver_->Granularity(kOnHost));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address freed,
                              driver_->Reserve(size, kOnHost.kind));
  EXPECT_TRUE(is_mapped(freed));
  ASSERT_THAT(driver_->FreeReservation(freed, size), IsOk());
  EXPECT_FALSE(is_mapped(freed));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address left, Mapped(kOnHost, kGpu0));
  EXPECT_TRUE(is_mapped(left));
  driver_.reset();
  EXPECT_FALSE(is_mapped(left));
}

TEST_F(CudaTable, AnAdoptedStreamOutlivesTheDriver) {
  Open();
  ASSERT_THAT(driver_->AdoptStream(kGpu0, nullptr), IsOk());
}

// Operations enqueued under either handle are in one order; otherwise the fake
// finds a race.
TEST_F(CudaTable, ANativeStreamAdoptedAgainIsTheSameStream) {
  Open("jitter_us=500");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address gpu, Mapped(kOnGpu0, kGpu0));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address host, Mapped(kOnHost, kGpu0));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream ours, driver_->CreateStream(kGpu0));
  SLUICE_ASSERT_OK_AND_ASSIGN(void* const native, driver_->NativeStream(ours));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream theirs,
                              driver_->AdoptStream(kGpu0, native));
  ASSERT_THAT(driver_->FillAsync(gpu, std::byte{7}, MiB(1), ours), IsOk());
  ASSERT_THAT(driver_->CopyAsync(host, gpu, MiB(1),
                                 CopyDirection::kDeviceToHost, theirs),
              IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(ours), IsOk());
  EXPECT_EQ(host[MiB(1).count() - 1], std::byte{7});
  EXPECT_THAT(driver_->NativeStream(Stream(4711)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CudaTable, ARankOpensAContextOnItsOwnGpuOnly) {
  Open("host_numa=0");
  ASSERT_THAT(Mapped(kOnHost, kGpu1), IsOk());
  std::string alive;
  fake_cuda::fake_cuda_alive(alive);
  EXPECT_THAT(alive, HasSubstr("context of GPU 1"));
  EXPECT_THAT(alive, ::testing::Not(HasSubstr("context of GPU 0")));
}

// If the table asked for no alignment, the driver would choose its default.
TEST_F(CudaTable, AReservationIsAlignedForAnyMemoryMappedThere) {
  Open("gpu_granularity_kib=8192,host_granularity_kib=16384");
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(Mapped(kOnHost, kGpu0), IsOk());
    ASSERT_THAT(Mapped(kOnGpu0, kGpu0), IsOk());
  }
}

// Import compares only the kind of memory: the driver may tell the exporter's
// number of the GPU.
TEST_F(CudaTable, AnImportOfAnotherKindThanStatedIsRefused) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes size, driver_->Granularity(kOnHost));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnGpu0, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, driver_->Export(memory));
  EXPECT_THAT(driver_->Import(fd, kOnHost, size),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no memory of 4 MiB on NUMA node 0")));
  EXPECT_THAT(driver_->Import(fd, kOnGpu0, size), IsOk());
}

TEST_F(CudaTable, HostMemoryOfTheOtherKindIsRefusedWithTheReason) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes size, driver_->Granularity(kOnHost));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kOnHost, size));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, driver_->Export(memory));
  const auto daemon = std::move(driver_);
  Open("host_numa=0");
  EXPECT_THAT(driver_->Import(fd, kOnHost, size),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("here host memory is a memfd, because: the "
                                 "driver offers no HOST_NUMA memory")));
}

TEST_F(CudaTable, RegisteredMemoryIsNotRegisteredAgainInPart) {
  Open();
  const Bytes page = KiB(4);
  alignas(4096) static std::byte pages[4 * 4096];
  ASSERT_THAT(driver_->HostRegister(pages + 4096, page * 2), IsOk());
  for (const int first : {0, 1, 2}) {
    EXPECT_THAT(driver_->HostRegister(pages + first * 4096, page * 2),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(driver_->HostRegister(pages, page), IsOk());
  EXPECT_THAT(driver_->HostRegister(pages + 3 * 4096, page), IsOk());
}

TEST_F(CudaTable, GpuMemoryIsMadeForNetworkCardsIfTheyCanReachIt) {
  const long before = fake_cuda::fake_cuda_rdma_memories();
  Open("rdma=0");
  ASSERT_THAT(Mapped(kOnGpu0, kGpu0), IsOk());
  EXPECT_EQ(fake_cuda::fake_cuda_rdma_memories(), before);
  Open("rdma=1");
  ASSERT_THAT(Mapped(kOnGpu0, kGpu0), IsOk());
  EXPECT_EQ(fake_cuda::fake_cuda_rdma_memories(), before + 1);
}

TEST_F(CudaTable, AModuleTooNewForTheDriverNamesTheNeededDriver) {
  Open();
  fake_cuda::fake_cuda_set("fail=cuLibraryLoadData:1:200");
  const std::byte code[8] = {};
  EXPECT_THAT(driver_->LoadModule(code),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("need the NVIDIA driver 580 or newer")));
}

TEST_F(CudaTable, DevicesReportTheirNumaNode) {
  Open("numa=3");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto devices, driver_->Devices());
  EXPECT_EQ(devices.at(1).numa, NumaIndex(3));
}

TEST_F(CudaTable, DevicesReportTheirComputeCapability) {
  Open("capability=89");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto devices, driver_->Devices());
  EXPECT_EQ(devices.at(1).capability, 89);
}

// The size is another process's claim. It is compared with the file's size for
// a memfd, and checked at mapping for the driver's memory.
TEST_F(CudaTable, AnImportWithAFalseSizeIsRefused) {
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  for (const bool driver_pins : {false, true}) {
    Open(driver_pins ? "host_numa=1" : "host_numa=0");
    SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes size,
                                driver_->Granularity(kOnHost));
    SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                                driver_->Create(kOnHost, size));
    SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, driver_->Export(memory));
    const auto lie = driver_->Import(fd, kOnHost, size * 2);
    if (!driver_pins) {
      EXPECT_THAT(lie, StatusIs(kBad));
      continue;
    }
    ASSERT_THAT(lie, IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const Address at,
                                driver_->Reserve(size * 2, kOnHost.kind));
    EXPECT_THAT(driver_->Map(at, size * 2, *lie), StatusIs(kBad));
  }
}

// If memory was pinned as a whole, Unmap of its middle pins both ends again.
TEST_F(CudaTable, UnmapReportsMemoryThatItCannotPinAgain) {
  Open("host_numa=0");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes size, driver_->Granularity(kOnHost));
  for (int failing = 1; failing <= 2; ++failing) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Address at,
                                driver_->Reserve(size * 3, kOnHost.kind));
    for (int i = 0; i < 3; ++i) {
      SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                                  driver_->Create(kOnHost, size));
      ASSERT_THAT(driver_->Map(at + i * size.count(), size, memory), IsOk());
    }
    ASSERT_THAT(driver_->SetAccess(at, size * 3, kGpu0), IsOk());
    const std::string fail =
        "fail=cuMemHostRegister_v2:" + std::to_string(failing) + ":2";
    fake_cuda::fake_cuda_set(fail.c_str());
    EXPECT_THAT(driver_->Unmap(at + size.count(), size),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("cuMemHostRegister")));
    EXPECT_THAT(driver_->Unmap(at + size.count(), size),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_F(CudaTable, MakingHostMemoryKeepsTheThreadsNumaPolicy) {
  const unsigned long nodes[2] = {1, 0};
  if (syscall(SYS_set_mempolicy, MPOL_BIND, nodes, 65) != 0) {
    GTEST_SKIP() << "this kernel has no NUMA policy";
  }
  Open("host_numa=0");
  ASSERT_THAT(Mapped(kOnHost, kGpu0), IsOk());
  int policy = -1;
  EXPECT_EQ(syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0), 0);
  EXPECT_EQ(policy, MPOL_BIND);
  syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

TEST_F(CudaTable, ALostGpuIsUnavailableAndTheOtherStillWorks) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(kGpu0));
  ASSERT_THAT(Mapped(kOnGpu0, kGpu0), IsOk());
  fake_cuda::fake_cuda_set("lose=0");
  constexpr auto kGone = absl::StatusCode::kUnavailable;
  EXPECT_THAT(driver_->SynchronizeStream(stream), StatusIs(kGone));
  EXPECT_THAT(driver_->CreateStream(kGpu0), StatusIs(kGone));
  EXPECT_THAT(driver_->Usage(kOnGpu0), StatusIs(kGone));
  EXPECT_THAT(Mapped(kOnGpu1, kGpu1), IsOk());
}

TEST_F(CudaTable, HeldOutsideOmitsOnlyTheLostGpu) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto beside, OpenCudaDriver());
  ASSERT_THAT(beside->Create(kOnGpu1, MiB(4)), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(auto held, driver_->HeldOutside());
  EXPECT_THAT(held,
              ElementsAre(Pair(kOnGpu0, Bytes(0)), Pair(kOnGpu1, MiB(4))));
  fake_cuda::fake_cuda_set("lose=0");
  SLUICE_ASSERT_OK_AND_ASSIGN(held, driver_->HeldOutside());
  EXPECT_THAT(held, ElementsAre(Pair(kOnGpu1, MiB(4))));
}

// After error 700 the context is useless, but the driver still ends cleanly.
TEST_F(CudaTable, ALostContextStaysUnavailable) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(kGpu0));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address on_gpu, Mapped(kOnGpu0, kGpu0));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address host, Mapped(kOnHost, kGpu0));
  fake_cuda::fake_cuda_set("fail=cuMemcpyAsync:1:700");
  constexpr auto kGone = absl::StatusCode::kUnavailable;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        driver_->CopyAsync(on_gpu, host, MiB(1), CopyDirection::kHostToDevice,
                           stream),
        StatusIs(kGone, HasSubstr("ILLEGAL_ADDRESS (of the fake driver)")));
  }
  EXPECT_THAT(driver_->SynchronizeStream(stream), StatusIs(kGone));
}

TEST(FakeCudaDeathTest, AProcessThatLeavesAStreamFails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [] {
    auto driver = OpenCudaDriver();
    if (driver.ok() && (*driver)->CreateStream(kGpu0).ok()) driver->release();
    std::exit(0);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(86),
              "left at the process's end: 1 streams, 1 holds on the context");
}

}  // namespace
}  // namespace sluice::device
