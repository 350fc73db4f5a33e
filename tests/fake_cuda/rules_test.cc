// Tests that the fake driver refuses every call that breaks a rule of rules.h.
#include "tests/fake_cuda/rules.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/exports.h"
#include "tests/fake_cuda/runtime_calls.h"

namespace sluice::fake_cuda {
namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr size_t kHostGranule = size_t{4} << 20;

AllocationProperties On(int type, int id) {
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location = {type, id};
  return properties;
}

class Rules : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // This call breaks kInitialised: cuInit has not been called.
    int count = 0;
    EXPECT_EQ(cuDeviceGetCount(&count), TextOf(Rule::kInitialised).code);
    EXPECT_EQ(fake_cuda_broken(static_cast<int>(Rule::kInitialised)), 1);
    std::string findings;
    fake_cuda_take_findings(findings);
    fake_cuda_set("gpus=2");
    ASSERT_EQ(cuInit(0), kSuccess);
  }
  static void TearDownTestSuite() {
    for (int rule = 0; rule < static_cast<int>(Rule::kCount); ++rule) {
      // Only a child process breaks this rule; the child's counts end with it.
      if (static_cast<Rule>(rule) == Rule::kNotForked) continue;
      EXPECT_GT(fake_cuda_broken(rule), 0)
          << "no test breaks " << kRules[rule].name;
    }
  }
  void SetUp() override {
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[0], 0), kSuccess);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[1], 1), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(contexts_[0]), kSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), kSuccess);
    std::string findings, alive;
    fake_cuda_take_findings(findings);
    fake_cuda_alive(alive);
    EXPECT_EQ(alive, "");
  }

  // Expects that the call broke that rule and no other.
  static void Breaks(Rule rule, Result result) {
    const RuleText& text = TextOf(rule);
    EXPECT_EQ(result, text.code) << text.name;
    std::string findings;
    fake_cuda_take_findings(findings);
    EXPECT_THAT(findings, ::testing::HasSubstr(std::string(text.text)));
    // The finding of a refused call begins with the function's name, "cu…". A
    // stream's thread may add findings that begin otherwise.
    const std::string lines = "\n" + findings;
    EXPECT_EQ(lines.find("\ncu"), lines.rfind("\ncu")) << findings;
  }
  // Makes the call in a thread without a current context.
  static void BreaksWithout(Rule rule, const std::function<Result()>& call) {
    std::thread([&] { Breaks(rule, call()); }).join();
  }

  struct Piece {
    MemoryHandle handle = 0;
    DevicePointer address = 0;
    size_t size = 0;
  };
  static Piece Make(int type, int id, size_t size) {
    Piece piece{.size = size};
    const AllocationProperties properties = On(type, id);
    EXPECT_EQ(cuMemCreate(&piece.handle, size, &properties, 0), kSuccess);
    EXPECT_EQ(cuMemAddressReserve(&piece.address, size, kHostGranule, 0, 0),
              kSuccess);
    EXPECT_EQ(cuMemMap(piece.address, size, 0, piece.handle, 0), kSuccess);
    return piece;
  }
  static Result Allow(const Piece& piece, int type, int id) {
    const AccessDescription access = {{type, id}, kAccessReadWrite};
    return cuMemSetAccess(piece.address, piece.size, &access, 1);
  }
  static Piece OnGpu() {
    const Piece piece = Make(kLocationDevice, 0, kGranule);
    EXPECT_EQ(Allow(piece, kLocationDevice, 0), kSuccess);
    return piece;
  }
  static Piece OnHost() {
    const Piece piece = Make(kLocationHostNuma, 0, kHostGranule);
    EXPECT_EQ(Allow(piece, kLocationHostNuma, 0), kSuccess);
    EXPECT_EQ(Allow(piece, kLocationDevice, 0), kSuccess);
    return piece;
  }
  static void Free(const Piece& piece) {
    EXPECT_EQ(cuMemUnmap(piece.address, piece.size), kSuccess);
    EXPECT_EQ(cuMemAddressFree(piece.address, piece.size), kSuccess);
    EXPECT_EQ(cuMemRelease(piece.handle), kSuccess);
  }
  static StreamPointer NewStream() {
    StreamPointer stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
    return stream;
  }
  static EventPointer NewEvent() {
    EventPointer event = nullptr;
    EXPECT_EQ(cuEventCreate(&event, kEventDisableTiming), kSuccess);
    return event;
  }

  static void DoNothing(const Views&) {}

  Context contexts_[2] = {};
};

TEST_F(Rules, CallsThatBreakContextRulesAreRefused) {
  StreamPointer stream = nullptr;
  BreaksWithout(Rule::kCurrentContext,
                [&] { return cuStreamCreate(&stream, kStreamNonBlocking); });
  const EventPointer event = NewEvent();
  BreaksWithout(Rule::kReleaseNeedsContext,
                [&] { return cuEventDestroy_v2(event); });
  EXPECT_EQ(cuEventDestroy_v2(event), kSuccess);
  int other = 0;
  Breaks(Rule::kKnownContext,
         cuCtxPushCurrent_v2(reinterpret_cast<Context>(&other)));
  BreaksWithout(Rule::kPopPushed, [] { return cuCtxPopCurrent_v2(nullptr); });
  Device device = 0;
  Breaks(Rule::kDeviceExists, cuDeviceGet(&device, 2));
}

TEST_F(Rules, CallsAfterAContextsLastReleaseAreRefused) {
  ASSERT_EQ(cuCtxPushCurrent_v2(contexts_[1]), kSuccess);
  NewEvent();
  Breaks(Rule::kEmptyContext, cuDevicePrimaryCtxRelease_v2(1));
  StreamPointer stream = nullptr;
  Breaks(Rule::kLiveContext, cuStreamCreate(&stream, kStreamNonBlocking));
  Breaks(Rule::kReleaseRetained, cuDevicePrimaryCtxRelease_v2(1));
  ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[1], 1), kSuccess);
}

TEST_F(Rules, CallsThatBreakAllocationRulesAreRefused) {
  MemoryHandle handle = 0;
  AllocationProperties properties = On(kLocationDevice, 0);
  Breaks(Rule::kGranularity,
         cuMemCreate(&handle, kGranule + 4096, &properties, 0));
  Breaks(Rule::kArguments, cuMemCreate(nullptr, kGranule, &properties, 0));
  properties.flags.rdma = 1;
  Breaks(Rule::kProperties, cuMemCreate(&handle, kGranule, &properties, 0));
  properties.flags.rdma = 0;
  properties.handle_types = 0;
  ASSERT_EQ(cuMemCreate(&handle, kGranule, &properties, 0), kSuccess);
  int fd = -1;
  Breaks(Rule::kMadeForExport,
         cuMemExportToShareableHandle(&fd, handle, kHandlePosixFd, 0));
  EXPECT_EQ(cuMemRelease(handle), kSuccess);
  Breaks(Rule::kLiveHandle, cuMemRelease(handle));
}

TEST_F(Rules, ImportedMemoryCannotBeExported) {
  const AllocationProperties properties = On(kLocationDevice, 0);
  MemoryHandle made = 0, imported = 0;
  ASSERT_EQ(cuMemCreate(&made, kGranule, &properties, 0), kSuccess);
  int fd = -1, again = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, made, kHandlePosixFd, 0),
            kSuccess);
  ASSERT_EQ(
      cuMemImportFromShareableHandle(
          &imported, reinterpret_cast<void*>(intptr_t{fd}), kHandlePosixFd),
      kSuccess);
  Breaks(Rule::kExportOwn,
         cuMemExportToShareableHandle(&again, imported, kHandlePosixFd, 0));
  close(fd);
  EXPECT_EQ(cuMemRelease(imported), kSuccess);
  EXPECT_EQ(cuMemRelease(made), kSuccess);
}

TEST_F(Rules, CallsThatBreakMappingRulesAreRefused) {
  const Piece piece = OnGpu();
  DevicePointer range = 0;
  Breaks(Rule::kPageMultiple, cuMemAddressReserve(&range, 4095, 0, 0, 0));
  ASSERT_EQ(cuMemAddressReserve(&range, kGranule, 0, 0, 0), kSuccess);
  Breaks(Rule::kInsideReservation,
         cuMemMap(range + kGranule, kGranule, 0, piece.handle, 0));
  Breaks(Rule::kWholeMemory,
         cuMemMap(range, kGranule, kGranule, piece.handle, 0));
  Breaks(Rule::kNotMapped,
         cuMemMap(piece.address, kGranule, 0, piece.handle, 0));
  Breaks(Rule::kFreeWhole, cuMemAddressFree(range, kGranule / 2));
  Breaks(Rule::kFreeUnmapped, cuMemAddressFree(piece.address, kGranule));
  Breaks(Rule::kUnmapWhole, cuMemUnmap(piece.address, kGranule / 2));
  EXPECT_EQ(cuMemAddressFree(range, kGranule), kSuccess);
  Breaks(Rule::kAccessPlace, Allow(piece, kLocationHostNuma, 0));
  Breaks(Rule::kAccessOwnGpu, Allow(piece, kLocationDevice, 1));
  Free(piece);
  Breaks(Rule::kAccessMapped, Allow(piece, kLocationDevice, 0));
}

TEST_F(Rules, CallsThatBreakRegistrationRulesAreRefused) {
  const long page = sysconf(_SC_PAGESIZE);
  void* const pages =
      mmap(nullptr, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  Breaks(Rule::kRegisterWritable, cuMemHostRegister_v2(pages, page, 0));
  ASSERT_EQ(mprotect(pages, 2 * page, PROT_READ | PROT_WRITE), 0);
  ASSERT_EQ(cuMemHostRegister_v2(pages, page, 0), kSuccess);
  Breaks(Rule::kRegisterOnce, cuMemHostRegister_v2(pages, 2 * page, 0));
  EXPECT_EQ(cuMemHostUnregister(pages), kSuccess);
  Breaks(Rule::kRegistered, cuMemHostUnregister(pages));
  munmap(pages, 2 * page);
}

TEST_F(Rules, CallsThatBreakStreamRulesAreRefused) {
  StreamPointer stream = nullptr;
  Breaks(Rule::kNonBlocking, cuStreamCreate(&stream, 0));
  Breaks(Rule::kLiveStream, cuStreamDestroy_v2(nullptr));
  Breaks(Rule::kLiveEvent, cuEventQuery(nullptr));
  const Piece gpu = OnGpu();
  const Piece host = OnHost();
  const EventPointer event = NewEvent();
  ASSERT_EQ(cuCtxPushCurrent_v2(contexts_[1]), kSuccess);
  stream = NewStream();
  Breaks(Rule::kEventOfContext, cuEventRecord(event, stream));
  ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
  Breaks(Rule::kStreamOfContext,
         cuMemcpyAsync(gpu.address, host.address, 1, stream));
  EXPECT_EQ(cuStreamDestroy_v2(stream), kSuccess);
  EXPECT_EQ(cuEventDestroy_v2(event), kSuccess);
  Free(gpu);
  Free(host);
}

TEST_F(Rules, CallsThatBreakElapsedTimeRulesAreRefused) {
  const StreamPointer stream = NewStream();
  EventPointer from = nullptr, to = nullptr;
  ASSERT_EQ(cuEventCreate(&from, 0), kSuccess);
  ASSERT_EQ(cuEventCreate(&to, 0), kSuccess);
  const EventPointer untimed = NewEvent();
  float milliseconds = -1;
  Breaks(Rule::kTimedEvent, cuEventElapsedTime_v2(&milliseconds, from, to));
  std::atomic<bool> go = false;
  ASSERT_EQ(cuEventRecord(from, stream), kSuccess);
  ASSERT_EQ(cuEventRecord(untimed, stream), kSuccess);
  ASSERT_EQ(fake_cuda_run(stream, "a kernel", {},
                          [&](const Views&) {
                            while (!go) usleep(1000);
                          }),
            kSuccess);
  ASSERT_EQ(cuEventRecord(to, stream), kSuccess);
  Breaks(Rule::kTimedEvent,
         cuEventElapsedTime_v2(&milliseconds, from, untimed));
  EXPECT_EQ(cuStreamQuery(stream), kNotReady);
  EXPECT_EQ(cuEventElapsedTime_v2(&milliseconds, from, to), kNotReady);
  go = true;
  EXPECT_EQ(cuStreamSynchronize(stream), kSuccess);
  EXPECT_EQ(cuStreamQuery(stream), kSuccess);
  EXPECT_EQ(cuEventElapsedTime_v2(&milliseconds, from, to), kSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, to, from), kSuccess);
  EXPECT_LE(milliseconds, 0);
  ASSERT_EQ(cuCtxPushCurrent_v2(contexts_[1]), kSuccess);
  const StreamPointer elsewhere = NewStream();
  EventPointer other = nullptr;
  ASSERT_EQ(cuEventCreate(&other, 0), kSuccess);
  ASSERT_EQ(cuEventRecord(other, elsewhere), kSuccess);
  Breaks(Rule::kTimesOfOneGpu, cuEventElapsedTime(&milliseconds, from, other));
  EXPECT_EQ(cuEventDestroy_v2(other), kSuccess);
  EXPECT_EQ(cuStreamDestroy_v2(elsewhere), kSuccess);
  ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
  for (const EventPointer event : {from, to, untimed}) {
    EXPECT_EQ(cuEventDestroy_v2(event), kSuccess);
  }
  EXPECT_EQ(cuStreamDestroy_v2(stream), kSuccess);
}

// If no context is pushed, cuCtxSetCurrent sets the base context below all
// pushed contexts. A base context is never popped.
TEST_F(Rules, AContextThatIsSetNeedsNoPop) {
  std::thread([&] {
    Context current = nullptr;
    Breaks(Rule::kKnownContext,
           cuCtxSetCurrent(reinterpret_cast<Context>(&current)));
    ASSERT_EQ(cuCtxSetCurrent(contexts_[0]), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(contexts_[1]), kSuccess);
    EXPECT_EQ(fake_cuda_current_device(), 1);
    ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    EXPECT_EQ(cuCtxGetCurrent(&current), kSuccess);
    EXPECT_EQ(current, contexts_[0]);
    std::string alive;
    fake_cuda_alive(alive);
    EXPECT_EQ(alive.find("pushed"), std::string::npos) << alive;
    Breaks(Rule::kPopPushed, cuCtxPopCurrent_v2(nullptr));
  }).join();
}

TEST_F(Rules, CallsThatBreakCopyRulesAreRefused) {
  const StreamPointer stream = NewStream();
  const Piece gpu = OnGpu();
  const Piece closed = Make(kLocationDevice, 0, kGranule);
  Breaks(Rule::kCopyAccess,
         cuMemcpyAsync(gpu.address, closed.address, 1, stream));
  Breaks(Rule::kCopyAccess, cuMemsetD8Async(closed.address, 1, 1, stream));
  alignas(4096) static char pages[2 * 4096];
  Breaks(Rule::kFillPinned,
         cuMemsetD8Async(reinterpret_cast<DevicePointer>(pages), 1, 1, stream));
  Breaks(Rule::kOperationPinned,
         fake_cuda_run(stream, "a kernel", {{pages, 1, true}}, DoNothing));
  ASSERT_EQ(cuMemHostRegister_v2(pages, 4096, 0), kSuccess);
  ASSERT_EQ(cuMemHostRegister_v2(pages + 4096, 4096, 0), kSuccess);
  const auto from = reinterpret_cast<DevicePointer>(pages);
  Breaks(Rule::kCopyOneRegistration,
         cuMemcpyAsync(gpu.address, from, 4097, stream));
  ASSERT_EQ(cuMemcpyAsync(gpu.address, from, 4096, stream), kSuccess);
  Breaks(Rule::kUnregisterIdle, cuMemHostUnregister(pages));
  cuStreamSynchronize(stream);
  fake_cuda_recover();  // the copy may have used unregistered memory
  EXPECT_EQ(cuMemHostUnregister(pages + 4096), kSuccess);
  EXPECT_EQ(cuStreamDestroy_v2(stream), kSuccess);
  Free(closed);
  Free(gpu);
}

TEST_F(Rules, HostCodeRunsInStreamOrderAndItsRacesAreFound) {
  const StreamPointer stream = NewStream(), other = NewStream();
  const Piece gpu = OnGpu();
  void* const bytes = reinterpret_cast<void*>(gpu.address);
  ASSERT_EQ(cuMemsetD8Async(gpu.address, 7, 2, stream), kSuccess);
  int seen = 0;
  const auto look = [&](const Views& views) {
    seen = static_cast<int>(views.at(0)[1]);
  };
  EXPECT_EQ(fake_cuda_run(stream, "a look", {{bytes, 2, false}}, look),
            kSuccess);
  EXPECT_EQ(cuStreamSynchronize(stream), kSuccess);
  EXPECT_EQ(seen, 7);
  ASSERT_EQ(cuMemsetD8Async(gpu.address, 8, 2, stream), kSuccess);
  EXPECT_EQ(fake_cuda_run(other, "a look", {{bytes, 2, false}}, DoNothing),
            kSuccess);
  std::string findings;
  fake_cuda_take_findings(findings);
  EXPECT_THAT(findings, ::testing::HasSubstr("race: read after write: a look"));
  for (const StreamPointer used : {stream, other}) {
    EXPECT_EQ(cuStreamSynchronize(used), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(used), kSuccess);
  }
  Free(gpu);
}

// Guards against memory that is unmapped while host code still uses it.
TEST_F(Rules, ALostContextIsReportedAfterItsHostCodeEnded) {
  const StreamPointer stream = NewStream();
  std::atomic<bool> started = false, ended = false;
  const auto work = [&](const Views&) {
    started = true;
    while (!fake_cuda_gone(0)) usleep(1000);
    ended = true;
  };
  EXPECT_EQ(fake_cuda_run(stream, "a kernel", {}, work), kSuccess);
  while (!started) usleep(1000);
  fake_cuda_set("fail=cuStreamSynchronize:1:700");
  EXPECT_EQ(cuStreamSynchronize(stream), 700);
  EXPECT_NE(cuStreamDestroy_v2(stream), kSuccess);
  EXPECT_TRUE(ended);
  fake_cuda_recover();
}

TEST_F(Rules, UnmappingMemoryThatAStreamUsesIsRefused) {
  const StreamPointer stream = NewStream();
  const Piece gpu = OnGpu();
  const Piece host = OnHost();
  ASSERT_EQ(cuMemcpyAsync(gpu.address, host.address, 1, stream), kSuccess);
  Breaks(Rule::kUnmapIdle, cuMemUnmap(gpu.address, gpu.size));
  cuStreamSynchronize(stream);
  fake_cuda_recover();
  EXPECT_EQ(cuMemAddressFree(gpu.address, gpu.size), kSuccess);
  EXPECT_EQ(cuMemRelease(gpu.handle), kSuccess);
  Free(host);
  EXPECT_EQ(cuStreamDestroy_v2(stream), kSuccess);
}

TEST_F(Rules, CallsThatBreakLibraryRulesAreRefused) {
  const unsigned fatbin[16] = {0xba55ed50};
  Library library = nullptr;
  Kernel kernel = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, fatbin, nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
            kSuccess);
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "nothing"), kSuccess);
  Breaks(Rule::kLaunchShape, cuLaunchKernel(kernel, 1, 0, 1, 1, 1, 1, 0,
                                            nullptr, nullptr, nullptr));
  Breaks(Rule::kLaunchShape, cuLaunchKernel(kernel, 1, 1, 1, 512, 4, 1, 0,
                                            nullptr, nullptr, nullptr));
  EXPECT_EQ(cuLibraryUnload(library), kSuccess);
  Breaks(Rule::kLiveKernel, cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                           nullptr, nullptr));
  Breaks(Rule::kLiveLibrary, cuLibraryUnload(nullptr));
  Breaks(Rule::kLiveKernel, cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0,
                                           nullptr, nullptr, nullptr));
}

TEST_F(Rules, UnorderedCopiesRaceAndOrderedCopiesDoNot) {
  const StreamPointer first = NewStream(), second = NewStream();
  const EventPointer event = NewEvent();
  const Piece gpu = OnGpu();
  const Piece host = OnHost();
  std::string findings;
  for (const bool ordered : {true, false}) {
    ASSERT_EQ(cuMemcpyAsync(gpu.address, host.address, 64, first), kSuccess);
    ASSERT_EQ(cuEventRecord(event, first), kSuccess);
    if (ordered) {
      ASSERT_EQ(cuStreamWaitEvent(second, event, 0), kSuccess);
    }
    ASSERT_EQ(cuMemcpyAsync(host.address + 64, gpu.address, 64, second),
              kSuccess);
    ASSERT_EQ(cuStreamSynchronize(first), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(second), kSuccess);
    fake_cuda_take_findings(findings);
    EXPECT_EQ(findings.empty(), ordered) << findings;
  }
  EXPECT_THAT(findings, ::testing::HasSubstr("race: read after write"));
  Free(gpu);
  Free(host);
  EXPECT_EQ(cuEventDestroy_v2(event), kSuccess);
  EXPECT_EQ(cuStreamDestroy_v2(first), kSuccess);
  EXPECT_EQ(cuStreamDestroy_v2(second), kSuccess);
}

TEST_F(Rules, UnreadyHidesReachedEventsFromQueriesOnly) {
  const StreamPointer stream = NewStream();
  const EventPointer event = NewEvent();
  ASSERT_EQ(cuEventRecord(event, stream), kSuccess);
  ASSERT_EQ(cuStreamSynchronize(stream), kSuccess);
  fake_cuda_set("unready=1");
  EXPECT_EQ(cuEventQuery(event), kNotReady);
  EXPECT_EQ(cuEventSynchronize(event), kSuccess);
  fake_cuda_set("unready=0");
  EXPECT_EQ(cuEventQuery(event), kSuccess);
}

TEST_F(Rules, CallsInAForkedChildAreRefused) {
  EXPECT_EXIT(_exit(cuDevicePrimaryCtxRelease_v2(0)),
              ::testing::ExitedWithCode(TextOf(Rule::kNotForked).code),
              "forked child");
  std::string findings;
  fake_cuda_take_findings(findings);
}

// Functions of atexit make the last calls, after thread_local data of their
// thread was destroyed.
TEST_F(Rules, FunctionsOfAtexitStillSeeTheThreadsContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_with_a_context = [this] {
    static const Context pushed = contexts_[0];
    std::atexit([] {
      Context current = nullptr;
      cuCtxGetCurrent(&current);
      if (current != pushed) _exit(1);
      cuCtxPopCurrent_v2(nullptr);
      for (const Device gpu : {0, 1}) cuDevicePrimaryCtxRelease_v2(gpu);
    });
    std::exit(0);
  };
  EXPECT_EXIT(exit_with_a_context(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::fake_cuda
