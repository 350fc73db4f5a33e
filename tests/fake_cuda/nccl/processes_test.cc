// Tests ranks that are processes: sums, mismatches, what kill -9 of a rank
// leaves, and how the other rank learns of the death.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "gtest/gtest.h"
#include "tests/fake_cuda/nccl/test_rank.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::fake_nccl {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::TempDir;
using ::testing::HasSubstr;

constexpr size_t kCount = 100'000;
constexpr absl::Duration kLong = absl::Seconds(60);

// Only the child processes use the fakes. Each opens a driver on the same node.
class Processes : public ::testing::Test {
 protected:
  Processes() {
    setenv("SLUICE_FAKE_CUDA",
           fmt::format("gpus=2,node={}", node_.path()).c_str(), 1);
  }
  ~Processes() override { unsetenv("SLUICE_FAKE_CUDA"); }

  using Body = std::function<void(TestRank&, Communicator*)>;
  std::unique_ptr<Child> Start(int rank, const Body& body) {
    return Child::Fork([this, rank, body] {
      ASSERT_EQ(cuInit(0), 0);
      const UniqueId id = rank == 0 ? Publish() : Await();
      TestRank self(rank, 2);
      body(self, self.Join(id));
    });
  }
  std::string Findings() const {
    std::ifstream file(node_.File("findings"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void ForgetId() const { std::filesystem::remove(signs_.File("id")); }
  static void Say(const char* text) { std::cout << text << std::endl; }

  static Result SumAll(TestRank& rank, void* bytes,
                       Communicator* communicator) {
    return ncclAllReduce(bytes, bytes, kCount, kFloat32, kSum, communicator,
                         rank.stream);
  }

 private:
  UniqueId Publish() const {
    UniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), kSuccess);
    std::ofstream(signs_.File("writing"), std::ios::binary)
        .write(id.internal, sizeof(id));
    std::filesystem::rename(signs_.File("writing"), signs_.File("id"));
    return id;
  }
  UniqueId Await() const {
    UniqueId id;
    for (;;) {
      std::ifstream file(signs_.File("id"), std::ios::binary);
      if (file.read(id.internal, sizeof(id))) return id;
      usleep(1000);
    }
  }

  TempDir node_, signs_;
};

TEST_F(Processes, AllReduceSumsAcrossProcesses) {
  const Body body = [](TestRank& rank, Communicator* communicator) {
    void* const bytes = rank.Make(Floats(kCount, 1.0F + rank.rank));
    EXPECT_EQ(SumAll(rank, bytes, communicator), kSuccess);
    EXPECT_EQ(rank.Read(bytes, kCount), Floats(kCount, 3));
    EXPECT_EQ(ncclCommDestroy(communicator), kSuccess);
  };
  const auto first = Start(0, body), second = Start(1, body);
  first->ExpectSuccess(kLong);
  second->ExpectSuccess(kLong);
  EXPECT_EQ(Findings(), "");
}

// Kills each rank in turn. Rank 0 is the maker of the unique id. No named
// shared memory may be left.
TEST_F(Processes, AKilledRankEndsTheOtherRanksOperation) {
  const auto names = [] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      names.push_back(entry.path().filename());
    }
    return names;
  };
  const Body waits = [](TestRank& rank, Communicator* communicator) {
    void* const bytes = rank.Make(Floats(kCount, 1));
    EXPECT_EQ(SumAll(rank, bytes, communicator), kSuccess);
    Say("waits");
    EXPECT_EQ(TestRank::AwaitError(communicator), kRemoteError);
    EXPECT_THAT(ncclGetLastError(communicator), HasSubstr("has ended"));
    rank.Wait();
    EXPECT_EQ(ncclCommAbort(communicator), kSuccess);
  };
  const Body dies = [](TestRank&, Communicator*) {
    Say("joined");
    pause();
  };
  for (int killed = 0; killed < 2; ++killed) {
    const auto first = Start(0, killed == 0 ? dies : waits);
    const auto second = Start(1, killed == 1 ? dies : waits);
    Child& victim = killed == 0 ? *first : *second;
    Child& other = killed == 0 ? *second : *first;
    ASSERT_TRUE(victim.WaitForOutput("joined", kLong));
    ASSERT_TRUE(other.WaitForOutput("waits", kLong));
    victim.Kill(SIGKILL);
    other.ExpectSuccess(kLong);
    EXPECT_EQ(victim.Join().signal, SIGKILL);
    EXPECT_EQ(Findings(), "");
    for (const std::string& name : names()) {
      EXPECT_THAT(name, ::testing::Not(HasSubstr("nccl")));
    }
    ForgetId();
  }
}

// The wait of a kernel for another GPU of the node has no timeout.
TEST_F(Processes, OnlyAnAbortEndsTheWaitForASilentlyDeadRank) {
  setenv("SLUICE_FAKE_NCCL", "silent=1", 1);
  const auto victim = Start(0, [](TestRank&, Communicator*) {
    Say("joined");
    pause();
  });
  const auto other = Start(1, [](TestRank& rank, Communicator* communicator) {
    void* const bytes = rank.Make(Floats(kCount, 1));
    EXPECT_EQ(SumAll(rank, bytes, communicator), kSuccess);
    Say("waits");
    usleep(300'000);
    Result error = kInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(communicator, &error), kSuccess);
    EXPECT_EQ(error, kSuccess);
    EXPECT_EQ(ncclCommAbort(communicator), kSuccess);
    rank.Wait();
  });
  ASSERT_TRUE(victim->WaitForOutput("joined", kLong));
  ASSERT_TRUE(other->WaitForOutput("waits", kLong));
  victim->Kill(SIGKILL);
  other->ExpectSuccess(kLong);
  unsetenv("SLUICE_FAKE_NCCL");
}

TEST_F(Processes, MismatchesAreFoundAcrossProcesses) {
  const Body body = [](TestRank& rank, Communicator* communicator) {
    void* const bytes = rank.Make(Floats(kCount, 1));
    ncclAllReduce(bytes, bytes, kCount - static_cast<size_t>(rank.rank),
                  kFloat32, kSum, communicator, rank.stream);
    EXPECT_EQ(TestRank::AwaitError(communicator), kInvalidUsage);
    EXPECT_EQ(ncclCommAbort(communicator), kSuccess);
  };
  const auto first = Start(0, body), second = Start(1, body);
  first->Join(kLong);
  second->Join(kLong);
  EXPECT_THAT(Findings(), HasSubstr("AllReduce of 99999 float32"));
}

}  // namespace
}  // namespace sluice::fake_nccl
