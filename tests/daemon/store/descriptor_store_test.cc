#include "daemon/store/descriptor_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/daemon/store/fake_store.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::FakeStore;
using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

UniqueFd Memfd() { return UniqueFd(memfd_create("test", MFD_CLOEXEC)); }

ino_t InodeOf(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_ino;
}

class Store : public ::testing::Test {
 protected:
  explicit Store(std::string address = "")
      : address_(address.empty() ? folder_.File("notify") : address),
        other_(std::make_unique<FakeStore>(address_)) {}

  std::unique_ptr<DescriptorStore> Start(
      int64_t capacity = 100, absl::Duration deadline = absl::Seconds(5)) {
    DescriptorStore::Options options;
    options.notify_socket = address_;
    options.capacity = capacity;
    options.deadline = deadline;
    auto store = DescriptorStore::Start(std::move(options));
    SLUICE_CHECK_OK(store.status());
    return *std::move(store);
  }

  static std::future<absl::Status> Flush(DescriptorStore& store) {
    auto done = std::make_shared<std::promise<absl::Status>>();
    store.Flush([done](absl::Status status) { done->set_value(status); });
    return done->get_future();
  }

  // Returns the next message's text, or "" if none comes in 2 s.
  std::string NextText() {
    auto message = other_->Next();
    return message ? message->text : "";
  }

  testing::TempDir folder_;
  const std::string address_;
  std::unique_ptr<FakeStore> other_;
};

class AbstractStore : public Store {
 protected:
  AbstractStore() : Store("@sluice-store-test-" + std::to_string(getpid())) {}
};

TEST_F(Store, AFlushIsDoneWhenItsBarrierIsAnswered) {
  const auto store = Start();
  const UniqueFd memory = Memfd();
  ASSERT_THAT(store->Put("x-1", memory.get()), IsOk());
  auto done = Flush(*store);
  const auto put = other_->Next();
  ASSERT_TRUE(put);
  EXPECT_EQ(put->text, "FDSTORE=1\nFDNAME=x-1\nFDPOLL=0");
  EXPECT_EQ(InodeOf(put->fd.get()), InodeOf(memory.get()));
  auto barrier = other_->Next();
  ASSERT_TRUE(barrier);
  EXPECT_EQ(barrier->text, "BARRIER=1");
  EXPECT_EQ(done.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  barrier->fd.Reset();
  EXPECT_THAT(done.get(), IsOk());
  EXPECT_TRUE(store->Has("x-1"));
}

TEST_F(AbstractStore, AStoreIsReachedAtAnAbstractAddress) {
  const auto store = Start();
  store->Ready("two\nGPUs");
  EXPECT_EQ(NextText(), "READY=1\nSTATUS=two GPUs");
}

TEST_F(Store, MessagesAreSentInOrder) {
  const auto store = Start();
  store->Ready("");
  store->Watchdog();
  EXPECT_EQ(NextText(), "READY=1\nSTATUS=");
  EXPECT_EQ(NextText(), "WATCHDOG=1");
}

TEST_F(Store, EachBatchHasOneBarrier) {
  const auto store = Start();
  const UniqueFd memory = Memfd();
  // The first flush is not answered yet, so later flushes wait together.
  auto first = Flush(*store);
  auto barrier = other_->Next();
  ASSERT_TRUE(barrier);
  std::vector<std::future<absl::Status>> rest;
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(store->Put("m" + std::to_string(i), memory.get()), IsOk());
    rest.push_back(Flush(*store));
  }
  barrier->fd.Reset();
  for (int i = 0; i < 5; ++i) EXPECT_THAT(NextText(), HasSubstr("FDSTORE=1"));
  EXPECT_EQ(NextText(), "BARRIER=1");
  for (auto& done : rest) EXPECT_THAT(done.get(), IsOk());
  EXPECT_FALSE(other_->Next(/*wait_ms=*/20));
}

TEST_F(Store, DescriptorsOfAnEarlierProcessCanBeRemoved) {
  DescriptorStore::Options options;
  options.notify_socket = address_;
  options.capacity = 1;
  std::map<std::string, UniqueFd> stored;
  stored["old"] = Memfd();
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto store, DescriptorStore::Start(std::move(options), stored));
  const UniqueFd memory = Memfd();
  EXPECT_THAT(store->Put("new", memory.get()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("it holds 1 of 1")));
  store->Remove("never there");
  store->Remove("old");
  EXPECT_EQ(NextText(), "FDSTOREREMOVE=1\nFDNAME=old");
  EXPECT_THAT(store->Put("new", memory.get()), IsOk());
  EXPECT_THAT(NextText(), HasSubstr("FDNAME=new"));
}

TEST_F(Store, InvalidNamesAndDescriptorsAreRefused) {
  const auto store = Start();
  const UniqueFd memory = Memfd();
  for (const char* name : {"", "A", "with:colon", "line\n", "seventeen-letters",
                           "sluiced.socket"}) {
    EXPECT_THAT(store->Put(name, memory.get()),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  ASSERT_THAT(store->Put("sixteen-letters-", memory.get()), IsOk());
  EXPECT_THAT(store->Put("sixteen-letters-", memory.get()),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_FALSE(store->Put("closed", -1).ok());
  EXPECT_FALSE(store->Has("closed"));
}

TEST_F(Store, AFlushFailsInTimeIfTheStoreNeverAnswers) {
  const auto store = Start(100, absl::Milliseconds(100));
  const UniqueFd memory = Memfd();
  const MonotonicClock clock;
  const absl::Time before = clock.Now();
  ASSERT_THAT(store->Put("a", memory.get()), IsOk());
  EXPECT_THAT(Flush(*store).get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("did not answer in time")));
  const absl::Duration took = clock.Now() - before;
  EXPECT_GE(took, absl::Milliseconds(95));
  EXPECT_LT(took, absl::Seconds(5));
}

// A keeper that is not this process's parent died before the start.
TEST_F(Store, TheStoreOfADeadKeeperKeepsNothing) {
  constexpr pid_t kNone = (1 << 22) - 1;
  int lost = 0;
  DescriptorStore::Options options;
  options.notify_socket = address_;
  options.capacity = 100;
  options.keeper = kNone;
  options.on_loss = [&] { ++lost; };
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto store,
                              DescriptorStore::Start(std::move(options)));
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(store->lost());
  EXPECT_FALSE(store->keeps());
  EXPECT_THAT(store->Put("a", Memfd().get()), IsOk());
  EXPECT_THAT(Flush(*store).get(), IsOk());
  EXPECT_FALSE(other_->Next(/*wait_ms=*/20));
}

TEST_F(Store, AFlushFailsInTimeIfTheStoreReadsNothing) {
  const auto store = Start(5000, absl::Milliseconds(100));
  const UniqueFd memory = Memfd();
  for (int i = 0; i < 2000; ++i) {  // more than a socket's queue holds
    ASSERT_THAT(store->Put("m" + std::to_string(i), memory.get()), IsOk());
  }
  EXPECT_THAT(Flush(*store).get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("takes nothing in time")));
}

// Guards against forgetting messages that could not be sent.
TEST_F(Store, UnsentMessagesGoFirstInTheNextBatch) {
  other_.reset();  // no process listens
  const auto store = Start();
  ASSERT_THAT(store->Put("x-1", Memfd().get()), IsOk());
  store->Remove("x-1");
  ASSERT_THAT(store->Put("x-2", Memfd().get()), IsOk());
  EXPECT_THAT(Flush(*store).get(), StatusIs(absl::StatusCode::kUnavailable));
  unlink(address_.c_str());
  other_ = std::make_unique<FakeStore>(address_);
  store->Remove("x-2");
  auto done = Flush(*store);
  EXPECT_EQ(NextText(), "FDSTORE=1\nFDNAME=x-1\nFDPOLL=0");
  EXPECT_EQ(NextText(), "FDSTOREREMOVE=1\nFDNAME=x-1");
  EXPECT_EQ(NextText(), "FDSTORE=1\nFDNAME=x-2\nFDPOLL=0");
  EXPECT_EQ(NextText(), "FDSTOREREMOVE=1\nFDNAME=x-2");
  EXPECT_EQ(NextText(), "BARRIER=1");
  EXPECT_THAT(done.get(), IsOk());
}

TEST_F(Store, AFlushFailsUntilAStoreListensAgain) {
  const auto store = Start();
  other_.reset();
  EXPECT_THAT(Flush(*store).get(), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("no process listens")));
  unlink(address_.c_str());
  other_ = std::make_unique<FakeStore>(address_);
  auto done = Flush(*store);
  EXPECT_EQ(NextText(), "BARRIER=1");
  EXPECT_THAT(done.get(), IsOk());
}

TEST_F(Store, AnIdleStoreTakesNoCpu) {
  const auto store = Start();
  const std::clock_t before = std::clock();
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
}

TEST_F(Store, TheDestructorCancelsWaitingFlushes) {
  auto store = Start(100, absl::Minutes(10));
  auto done = Flush(*store);
  const auto barrier = other_->Next();
  auto behind = Flush(*store);
  store.reset();
  EXPECT_THAT(done.get(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(behind.get(), StatusIs(absl::StatusCode::kCancelled));
}

TEST(NoStore, WithoutAStoreNothingIsKeptAndFlushesAreDone) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto store, DescriptorStore::Start({}));
  EXPECT_FALSE(store->keeps());
  EXPECT_THAT(store->Put("a", 0), IsOk());
  store->Remove("a");
  store->Ready("x");
  absl::Status done = absl::UnknownError("not called");
  store->Flush([&](absl::Status status) { done = status; });
  EXPECT_THAT(done, IsOk());
}

// systemd listens for a unit of Type=notify, with or without a descriptor
// store.
TEST_F(Store, AManagerWithoutAStoreStillGetsMessages) {
  const auto store = Start(/*capacity=*/0);
  EXPECT_FALSE(store->keeps());
  EXPECT_THAT(store->Put("x", Memfd().get()), IsOk());
  EXPECT_THAT(Flush(*store).get(), IsOk());
  store->Ready("serving");
  EXPECT_THAT(NextText(), HasSubstr("READY=1"));
}

TEST(NoStore, AnInvalidAddressIsRefused) {
  for (const std::string& address :
       std::vector<std::string>{"relative", "@", "/" + std::string(200, 'x')}) {
    DescriptorStore::Options options;
    options.notify_socket = address;
    EXPECT_THAT(DescriptorStore::Start(std::move(options)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("$NOTIFY_SOCKET")));
  }
}

}  // namespace
}  // namespace sluice::daemon
