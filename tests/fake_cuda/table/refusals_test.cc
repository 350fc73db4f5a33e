// Tests the messages of errors that the cuda table itself finds: in arguments,
// in the driver's answers, and in those of the Linux kernel.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
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
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DeviceIndex kFirstGpu(0);
constexpr Placement kHostPlacement{Placement::Kind::kHost, 0};

// Lowers a limit of the process while the object lives.
class Limit {
 public:
  Limit(int resource, rlim_t value) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit now = {value, before_.rlim_max};
    setrlimit(resource_, &now);
  }
  Limit(const Limit&) = delete;
  ~Limit() { setrlimit(resource_, &before_); }

 private:
  const int resource_;
  rlimit before_ = {};
};

class CudaRefusals : public OpenedTable {};

TEST_F(CudaRefusals, AMissingOrEmptyArgumentIsRefusedByName) {
  Open();
  const DeviceIndex none(1000);
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(driver_->AdoptStream(none, nullptr),
              StatusIs(kBad, HasSubstr("there is no GPU 1000")));
  EXPECT_THAT(driver_->Usage(Placement::Host(NumaIndex(1000))),
              StatusIs(kBad, HasSubstr("there is no NUMA node 1000")));
  EXPECT_THAT(driver_->SetAccess(nullptr, MiB(4), none),
              StatusIs(kBad, HasSubstr("there is no GPU 1000")));
  EXPECT_THAT(driver_->Import(UniqueFd(), kHostPlacement, MiB(4)),
              StatusIs(kBad, HasSubstr("Import of no descriptor")));
  EXPECT_THAT(driver_->Reserve(Bytes(0), kHostPlacement.kind),
              StatusIs(kBad, HasSubstr("Reserve of an empty range")));
  EXPECT_THAT(driver_->GetFunction(Module(4711), "f"),
              StatusIs(kBad, HasSubstr("there is no module 4711")));
}

TEST_F(CudaRefusals, AMissingStreamOrEventIsRefusedByName) {
  Open();
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  const Stream compute = driver_->ComputeStream(kFirstGpu);
  EXPECT_THAT(driver_->SynchronizeStream(Stream(4711)),
              StatusIs(kBad, HasSubstr("there is no stream 4711")));
  EXPECT_THAT(driver_->DestroyStream(compute),
              StatusIs(kBad, HasSubstr("there is no stream")));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream adopted,
                              driver_->AdoptStream(kFirstGpu, nullptr));
  EXPECT_THAT(driver_->DestroyStream(adopted),
              StatusIs(kBad, HasSubstr("is not the driver's to destroy")));
  EXPECT_THAT(driver_->RecordEvent(Event(4711), compute),
              StatusIs(kBad, HasSubstr("there is no event 4711")));
  EXPECT_THAT(driver_->Launch(Function(4711), LaunchShape{}, {}, compute),
              StatusIs(kBad, HasSubstr("there is no function 4711")));
}

TEST_F(CudaRefusals, AnOldDriverIsRefusedWithTheVersionThatIsNeeded) {
  fake_cuda::fake_cuda_set("version=12010");
  EXPECT_THAT(OpenCudaDriver(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("for CUDA 12.1; 12.2 or newer is needed")));
  fake_cuda::fake_cuda_set("version=12020");
  EXPECT_THAT(OpenCudaDriver(), IsOk());
}

TEST_F(CudaRefusals, ExclusiveGpusAreRefusedWithTheCommandThatSharesThem) {
  fake_cuda::fake_cuda_set("compute_mode=3");
  const auto driver = OpenCudaDriver();
  fake_cuda::fake_cuda_set("compute_mode=0");
  EXPECT_THAT(driver,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("nvidia-smi -i GPU-fafafafa-fafa-fafa-fafa-"
                                 "fafafafafa00 -c 0")));
}

TEST_F(CudaRefusals, ALostGpuKeepsItsNumberAndItsCallsReportItsFault) {
  Open("gpus=2,lose=0");
  fake_cuda::fake_cuda_set("lose=-1");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto gpus, driver_->Devices());
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_THAT(gpus[0].fault, HasSubstr("CUDA_ERROR_DEVICE_UNAVAILABLE"));
  EXPECT_EQ(gpus[1].fault, "");
  for (const absl::Status& refused :
       {driver_->Create(Placement::Gpu(kFirstGpu), MiB(4)).status(),
        driver_->Usage(Placement::Gpu(kFirstGpu)).status(),
        driver_->CreateStream(kFirstGpu).status()}) {
    EXPECT_EQ(refused.message(), gpus[0].fault);
  }
  EXPECT_THAT(driver_->Create(kHostPlacement, MiB(4)), IsOk());
}

TEST_F(CudaRefusals, ANodeWithoutGpusIsRefused) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const auto driver = OpenCudaDriver();
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(driver, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr("CUDA_ERROR_NO_DEVICE"),
                                     HasSubstr("CUDA_VISIBLE_DEVICES is ''"))));
}

TEST_F(CudaRefusals, RefusedHostMemoryNamesTheFailedCall) {
  Open("host_numa=0");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Bytes size,
                              driver_->Granularity(kHostPlacement));
  {
    const Limit descriptors(RLIMIT_NOFILE, 0);
    const absl::Status none = driver_->Create(kHostPlacement, size).status();
    EXPECT_THAT(std::string(none.message()), HasSubstr("memfd_create"));
  }
  {
    std::signal(SIGXFSZ, SIG_IGN);
    const Limit file(RLIMIT_FSIZE, 4096);
    const absl::Status large = driver_->Create(kHostPlacement, size).status();
    EXPECT_THAT(std::string(large.message()), HasSubstr("size host memory"));
    std::signal(SIGXFSZ, SIG_DFL);
  }
  EXPECT_THAT(
      driver_->Reserve(Bytes(int64_t{1} << 60), kHostPlacement.kind).status(),
      ::testing::Not(IsOk()));
}

}  // namespace
}  // namespace sluice::device
