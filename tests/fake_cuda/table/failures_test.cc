// Lets each call of every driver function fail once: there must be one clear
// error line, no crash, and nothing left.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/api.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"
#include "tests/fake_cuda/control.h"
#include "tests/support/status_matchers.h"

namespace sluice::device {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kUnknown = 999;

const std::vector<std::string>& Functions() {
  static const std::vector<std::string> names = {
#define SLUICE_NAME(name, ...) #name,
      SLUICE_CUDA_FUNCTIONS(SLUICE_NAME)
#undef SLUICE_NAME
  };
  return names;
}

// The table does not report failures of these functions: no caller could act.
const std::set<std::string> kSilent = {"cuMemRelease",
                                       "cuDevicePrimaryCtxRelease_v2",
                                       "cuLibraryUnload", "cuCtxPopCurrent_v2"};
// Calls that detect features while the driver is opened: a failure means "no".
const std::set<std::string> kProbes = {
    "cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemCreate",
    "cuMemExportToShareableHandle"};

using Calls = std::map<std::string, long>;

Calls Counts() {
  Calls counts;
  for (const std::string& name : Functions()) {
    counts[name] = fake_cuda::fake_cuda_calls(name.c_str());
  }
  return counts;
}

struct Outcome {
  absl::Status status;
  Calls opened, used, closed;  // calls up to each point
};

struct Piece {
  Memory memory, import;
  Address address = nullptr;
  Bytes size;
};

absl::StatusOr<Piece> MakePiece(Driver& driver, Placement where) {
  Piece piece;
  SLUICE_ASSIGN_OR_RETURN(piece.size, driver.Granularity(where));
  SLUICE_ASSIGN_OR_RETURN(piece.memory, driver.Create(where, piece.size));
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd fd, driver.Export(piece.memory));
  SLUICE_ASSIGN_OR_RETURN(piece.import, driver.Import(fd, where, piece.size));
  SLUICE_ASSIGN_OR_RETURN(piece.address,
                          driver.Reserve(piece.size, where.kind));
  SLUICE_RETURN_IF_ERROR(driver.Map(piece.address, piece.size, piece.import));
  SLUICE_RETURN_IF_ERROR(
      driver.SetAccess(piece.address, piece.size, DeviceIndex(0)));
  return piece;
}

absl::Status FreePiece(Driver& driver, const Piece& piece) {
  SLUICE_RETURN_IF_ERROR(driver.Unmap(piece.address, piece.size));
  SLUICE_RETURN_IF_ERROR(driver.FreeReservation(piece.address, piece.size));
  SLUICE_RETURN_IF_ERROR(driver.Release(piece.import));
  return driver.Release(piece.memory);
}

absl::Status UseStreams(Driver& driver, const Piece& gpu, const Piece& host) {
  const Bytes size = std::min(gpu.size, host.size);
  SLUICE_ASSIGN_OR_RETURN(const Stream stream,
                          driver.CreateStream(DeviceIndex(0)));
  SLUICE_ASSIGN_OR_RETURN(const Event event, driver.CreateTimedEvent());
  SLUICE_RETURN_IF_ERROR(
      driver.FillAsync(gpu.address, std::byte{0xff}, size, stream));
  SLUICE_RETURN_IF_ERROR(driver.CopyAsync(
      gpu.address, host.address, size, CopyDirection::kHostToDevice, stream));
  SLUICE_RETURN_IF_ERROR(driver.RecordEvent(event, stream));
  const Stream compute = driver.ComputeStream(DeviceIndex(0));
  SLUICE_RETURN_IF_ERROR(driver.StreamWaitEvent(compute, event));
  SLUICE_RETURN_IF_ERROR(driver.CopyAsync(
      host.address, gpu.address, size, CopyDirection::kDeviceToHost, compute));
  SLUICE_RETURN_IF_ERROR(driver.QueryEvent(event).status());
  SLUICE_RETURN_IF_ERROR(driver.SynchronizeEvent(event));
  SLUICE_RETURN_IF_ERROR(driver.ElapsedTime(event, event).status());
  SLUICE_RETURN_IF_ERROR(driver.SynchronizeStream(compute));
  // The event moves to another GPU's context.
  SLUICE_RETURN_IF_ERROR(
      driver.RecordEvent(event, driver.ComputeStream(DeviceIndex(1))));
  SLUICE_RETURN_IF_ERROR(driver.DestroyEvent(event));
  return driver.DestroyStream(stream);
}

absl::Status UseModule(Driver& driver, Stream stream) {
  const unsigned magic = 0xba55ed50;
  std::byte fatbin[64] = {};
  std::memcpy(fatbin, &magic, sizeof(magic));
  SLUICE_ASSIGN_OR_RETURN(const Module module, driver.LoadModule(fatbin));
  SLUICE_ASSIGN_OR_RETURN(const Function function,
                          driver.GetFunction(module, "nothing"));
  return driver.Launch(function, LaunchShape{}, {}, stream);
}

// Uses the device interface so that the table calls every driver function.
absl::Status Use(Driver& driver) {
  SLUICE_ASSIGN_OR_RETURN(const auto devices, driver.Devices());
  for (const DeviceInfo& gpu : devices) {
    if (!gpu.fault.empty()) return absl::UnavailableError(gpu.fault);
  }
  // Not HeldOutside: it makes the same call, but omits GPUs that do not answer.
  for (const DeviceIndex gpu : {DeviceIndex(0), DeviceIndex(1)}) {
    SLUICE_RETURN_IF_ERROR(driver.Usage(Placement::Gpu(gpu)).status());
  }
  SLUICE_ASSIGN_OR_RETURN(const Piece gpu,
                          MakePiece(driver, Placement::Gpu(DeviceIndex(0))));
  SLUICE_ASSIGN_OR_RETURN(const Piece host,
                          MakePiece(driver, Placement::Host(NumaIndex(0))));
  alignas(4096) static std::byte page[4096];
  SLUICE_RETURN_IF_ERROR(driver.HostRegister(page, Bytes(4096)));
  SLUICE_RETURN_IF_ERROR(UseStreams(driver, gpu, host));
  SLUICE_RETURN_IF_ERROR(
      UseModule(driver, driver.ComputeStream(DeviceIndex(0))));
  SLUICE_RETURN_IF_ERROR(driver.HostUnregister(page));
  SLUICE_RETURN_IF_ERROR(FreePiece(driver, host));
  return FreePiece(driver, gpu);
}

Outcome RunAll() {
  Outcome outcome;
  {
    const auto driver = OpenCudaDriver();
    outcome.status = driver.status();
    outcome.opened = Counts();
    if (driver.ok()) outcome.status = Use(**driver);
    outcome.used = Counts();
  }
  outcome.closed = Counts();
  return outcome;
}

// Returns the lines that do not contain `what`.
std::string Without(const std::string& lines, const std::string& what) {
  std::string left;
  for (const absl::string_view line :
       absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    if (!absl::StrContains(line, what)) absl::StrAppend(&left, line, "\n");
  }
  return left;
}

class FailingCalls : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fake_cuda::fake_cuda_set(
        "gpus=2,gpu_granularity_kib=64,host_granularity_kib=128");
    fake_cuda::fake_cuda_set(GetParam());
  }
  // Returns the findings and live objects after the driver's end that the
  // failed call does not explain.
  static std::string Left(const std::string& failed) {
    std::string findings, alive;
    fake_cuda::fake_cuda_recover();
    fake_cuda::fake_cuda_take_findings(findings);
    fake_cuda::fake_cuda_alive(alive);
    // An object cannot be released if its context cannot be pushed. The release
    // of the context then destroys the object, which is a finding.
    if (failed == "cuCtxPushCurrent_v2") {
      findings = Without(findings, "end before their context");
    }
    return findings + alive;
  }
  static long Descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         {});
  }
};
INSTANTIATE_TEST_SUITE_P(HostMemory, FailingCalls,
                         ::testing::Values("host_numa=1", "host_numa=0"),
                         [](const auto& info) {
                           return info.param == std::string("host_numa=0")
                                      ? "Memfd"
                                      : "HostNuma";
                         });

TEST_P(FailingCalls, EachFailureGivesOneErrorLineAndLeavesNothing) {
  const Calls before = Counts();
  const Outcome clean = RunAll();
  ASSERT_THAT(clean.status, testing::IsOk());
  ASSERT_THAT(Left(""), IsEmpty());
  int points = 0;
  const long descriptors = Descriptors();
  for (const std::string& name : Functions()) {
    const long start = before.at(name);
    const long total = clean.closed.at(name) - start;
    if (name.starts_with("cuGetError")) continue;  // see the next test
    EXPECT_GT(total, 0) << name;
    for (long n = 1; n <= total; ++n, ++points) {
      SCOPED_TRACE(fmt::format("call {} of {}", n, name));
      fake_cuda::fake_cuda_set(
          fmt::format("fail={}:{}:{}", name, n, kUnknown).c_str());
      const absl::Status status = RunAll().status;
      const std::string message(status.message());
      EXPECT_THAT(Left(name), IsEmpty());
      const bool probe =
          n <= clean.opened.at(name) - start && kProbes.contains(name);
      const bool at_the_end = n > clean.used.at(name) - start;
      if (!probe && !at_the_end && !kSilent.contains(name)) {
        EXPECT_FALSE(status.ok());
      }
      if (status.ok()) continue;
      EXPECT_THAT(message, HasSubstr(name));
      EXPECT_THAT(message, HasSubstr("CUDA_ERROR_UNKNOWN"));
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
  EXPECT_EQ(Descriptors(), descriptors);
  RecordProperty("failing_calls", points);
  EXPECT_GT(points, 100);
}

TEST_P(FailingCalls, AnErrorWithoutNameOrTextIsStillReported) {
  const std::pair<const char*, const char*> said[] = {
      {"cuGetErrorName", "cuDeviceGetCount: error 999 ("},
      {"cuGetErrorString",
       "cuDeviceGetCount: CUDA_ERROR_UNKNOWN (unknown to this driver)"}};
  for (const auto& [name, message] : said) {
    fake_cuda::fake_cuda_set(
        fmt::format("fail={}:1:{}", name, kUnknown).c_str());
    fake_cuda::fake_cuda_set("fail=cuDeviceGetCount:1:999");
    const absl::Status status = RunAll().status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(Left(name), IsEmpty());
  }
}

TEST(Findings, WithoutRemovesOnlyLinesWithTheText) {
  EXPECT_EQ(Without("a race\nthey go before it\nnothing\n", "go before"),
            "a race\nnothing\n");
}

}  // namespace
}  // namespace sluice::device
