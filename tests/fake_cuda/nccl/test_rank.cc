#include "tests/fake_cuda/nccl/test_rank.h"

#include <unistd.h>

#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"

namespace sluice::fake_nccl {
namespace {

constexpr size_t kGranule = size_t{4} << 20;

std::string TakeFindings() {
  std::string findings;
  fake_cuda::fake_cuda_take_findings(findings);
  return findings;
}

}  // namespace

TestRank::TestRank(int rank, int ranks) : rank(rank), ranks(ranks) {
  device::cuda::Context context = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, rank), 0);
  EXPECT_EQ(cuCtxPushCurrent_v2(context), 0);
  EXPECT_EQ(cuStreamCreate(&stream, kStreamNonBlocking), 0);
}

TestRank::~TestRank() {
  cuStreamSynchronize(stream);
  for (const Memory& memory : memories_) {
    cuMemUnmap(memory.address, memory.size);
    cuMemAddressFree(memory.address, memory.size);
    cuMemRelease(memory.handle);
  }
  cuStreamDestroy_v2(stream);
  cuCtxPopCurrent_v2(nullptr);
  cuDevicePrimaryCtxRelease_v2(rank);
}

Communicator* TestRank::Join(const UniqueId& id) {
  Communicator* made = nullptr;
  EXPECT_EQ(ncclCommInitRank(&made, ranks, id, rank), kSuccess)
      << ncclGetLastError(nullptr);
  return made;
}

void* TestRank::Make(size_t floats) {
  Memory memory;
  memory.size = (floats * sizeof(float) + kGranule - 1) / kGranule * kGranule;
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.location = {kLocationDevice, rank};
  const AccessDescription access = {{kLocationDevice, rank}, kAccessReadWrite};
  EXPECT_EQ(cuMemCreate(&memory.handle, memory.size, &properties, 0), 0);
  EXPECT_EQ(cuMemAddressReserve(&memory.address, memory.size, kGranule, 0, 0),
            0);
  EXPECT_EQ(cuMemMap(memory.address, memory.size, 0, memory.handle, 0), 0);
  EXPECT_EQ(cuMemSetAccess(memory.address, memory.size, &access, 1), 0);
  memories_.push_back(memory);
  return reinterpret_cast<void*>(memory.address);
}

void* TestRank::Make(const Floats& values) {
  void* const at = Make(values.size());
  Fill(at, values);
  return at;
}

void TestRank::Fill(void* at, const Floats& values, StreamPointer on) {
  const size_t size = values.size() * sizeof(float);
  const auto fill = [values, size](const fake_cuda::Views& views) {
    std::memcpy(views[0], values.data(), size);
  };
  EXPECT_EQ(fake_cuda::fake_cuda_run(on == nullptr ? stream : on, "a fill",
                                     {{at, size, true}}, fill),
            0);
}

Floats TestRank::Read(void* at, size_t floats) {
  Floats values(floats);
  const size_t size = floats * sizeof(float);
  const auto read = [&](const fake_cuda::Views& views) {
    std::memcpy(values.data(), views[0], size);
  };
  EXPECT_EQ(
      fake_cuda::fake_cuda_run(stream, "a read", {{at, size, false}}, read), 0);
  Wait();
  return values;
}

Result TestRank::AwaitError(Communicator* communicator) {
  Result error = kSuccess;
  while (error == kSuccess) {
    usleep(1000);
    EXPECT_EQ(ncclCommGetAsyncError(communicator, &error), kSuccess);
  }
  return error;
}

std::string RunRanks(int ranks, const std::function<void(TestRank&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TestRank one(rank, ranks);
      body(one);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string alive;
  fake_cuda::fake_cuda_alive(alive);
  EXPECT_EQ(alive, "");
  return TakeFindings();
}

std::string RunRanks(int ranks, const WithOne& body) {
  UniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), kSuccess);
  return RunRanks(ranks, [&](TestRank& rank) {
    Communicator* const one = rank.Join(id);
    body(rank, one);
    EXPECT_EQ(ncclCommDestroy(one), kSuccess);
  });
}

std::string RunRanks(int ranks, const WithTwo& body) {
  UniqueId second;
  EXPECT_EQ(ncclGetUniqueId(&second), kSuccess);
  return RunRanks(ranks, [&](TestRank& rank, Communicator* one) {
    Communicator* const two = rank.Join(second);
    body(rank, one, two);
    EXPECT_EQ(ncclCommDestroy(two), kSuccess);
  });
}

}  // namespace sluice::fake_nccl
