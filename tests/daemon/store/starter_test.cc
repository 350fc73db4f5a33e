#include "daemon/store/starter.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::Child;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr const char* kVariables[] = {
    "NOTIFY_SOCKET",  "LISTEN_PID",    "LISTEN_FDS",
    "LISTEN_FDNAMES", "FDSTORE",       "WATCHDOG_PID",
    "WATCHDOG_USEC",  "SLUICE_KEEPER", "SLUICE_KEEPER_PID"};

void Set(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
}

// Runs `body` in a child process that has memfds as descriptors 3 and 4.
void AsStarted(const std::function<void()>& body) {
  Child::Fork([&] {
    close_range(3, ~0U, 0);
    ASSERT_EQ(memfd_create("a", 0), 3);
    ASSERT_EQ(memfd_create("b", 0), 4);
    for (const char* name : kVariables) unsetenv(name);
    Set("LISTEN_PID", std::to_string(getpid()));
    Set("LISTEN_FDS", "2");
    body();
    for (const char* name : kVariables) EXPECT_EQ(std::getenv(name), nullptr);
  })->ExpectSuccess();
}

TEST(Starter, DescriptorsAreTakenByName) {
  AsStarted([] {
    Set("LISTEN_FDNAMES", "m-1:sluiced.socket");
    Set("NOTIFY_SOCKET", "/run/x");
    Set("FDSTORE", "500");
    Set("WATCHDOG_USEC", "3000000");
    Set("SLUICE_KEEPER_PID", "17");
    SLUICE_ASSERT_OK_AND_ASSIGN(const Starter starter, TakeFromStarter());
    EXPECT_EQ(starter.stored.size(), 1);
    EXPECT_EQ(starter.stored.at("m-1").get(), 3);
    ASSERT_EQ(starter.sockets.size(), 1);
    EXPECT_EQ(starter.sockets[0].first, "sluiced.socket");
    EXPECT_EQ(starter.sockets[0].second.get(), 4);
    EXPECT_EQ(fcntl(3, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(fcntl(4, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(starter.notify_socket, "/run/x");
    EXPECT_EQ(starter.keeper, 17);
    EXPECT_EQ(starter.store_size, 500);
    EXPECT_EQ(starter.watchdog, absl::Seconds(3));
    EXPECT_GT(starter.open_files, 0);
  });
}

TEST(Starter, AnEarlierKeepersVariableIsRead) {
  AsStarted([] {
    Set("SLUICE_KEEPER", "17:/a:b");
    SLUICE_ASSERT_OK_AND_ASSIGN(const Starter starter, TakeFromStarter());
    EXPECT_EQ(starter.keeper, 17);
    EXPECT_EQ(getenv("SLUICE_KEEPER"), nullptr);
  });
}

TEST(Starter, TheFirstOfTwoEqualNamesCounts) {
  AsStarted([] {
    Set("LISTEN_FDNAMES", "m:m");
    SLUICE_ASSERT_OK_AND_ASSIGN(const Starter starter, TakeFromStarter());
    EXPECT_EQ(starter.stored.at("m").get(), 3);
    EXPECT_EQ(fcntl(4, F_GETFD), -1);  // closed
  });
}

TEST(Starter, DescriptorsOfAnotherProcessAreLeftOpen) {
  AsStarted([] {
    Set("LISTEN_PID", "1");
    Set("LISTEN_FDNAMES", "a:b");
    SLUICE_ASSERT_OK_AND_ASSIGN(const Starter starter, TakeFromStarter());
    EXPECT_TRUE(starter.stored.empty());
    EXPECT_EQ(fcntl(3, F_GETFD), 0);
  });
}

TEST(Starter, AStarterThatPassesNothingIsAccepted) {
  AsStarted([] {
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    SLUICE_ASSERT_OK_AND_ASSIGN(const Starter starter, TakeFromStarter());
    EXPECT_TRUE(starter.stored.empty());
    EXPECT_TRUE(starter.notify_socket.empty());
    EXPECT_FALSE(starter.store_size);
  });
}

TEST(Starter, AnInvalidVariableIsRefusedByName) {
  const auto refused = [](const char* name, const std::string& value,
                          const std::string& why) {
    Child::Fork([&] {
      for (const char* variable : kVariables) unsetenv(variable);
      Set("LISTEN_PID", std::to_string(getpid()));
      Set("LISTEN_FDS", "2");
      Set("LISTEN_FDNAMES", "a:b");
      Set(name, value);
      EXPECT_THAT(TakeFromStarter(),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
          << name << "=" << value;
    })->ExpectSuccess();
  };
  for (const char* number :
       {"", "-1", "+1", " 1", "1x", "0x1", "1.5", "99999999999999999999"}) {
    refused("LISTEN_FDS", number, "$LISTEN_FDS");
    refused("LISTEN_PID", number, "$LISTEN_PID");
    refused("FDSTORE", number, "$FDSTORE");
    refused("WATCHDOG_USEC", number, "$WATCHDOG_USEC");
  }
  refused("LISTEN_FDNAMES", "a", "1 names for 2 descriptors");
  refused("SLUICE_KEEPER_PID", "0", "$SLUICE_KEEPER_PID");
  refused("SLUICE_KEEPER", "x:/a", "$SLUICE_KEEPER_PID");
  refused("LISTEN_FDNAMES", "a:b:c", "3 names for 2 descriptors");
  refused("LISTEN_FDS", "1000000", "names for 1000000");
}

TEST(Starter, ADescriptorThatIsNotOpenIsRefused) {
  AsStarted([] {
    close(4);
    Set("LISTEN_FDNAMES", "a:b");
    EXPECT_THAT(TakeFromStarter(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("descriptor 4 ('b')")));
  });
}

TEST(StoreCapacity, TheCapacityIsNoMoreThanTheNextDaemonCanReceive) {
  Starter starter;
  starter.open_files = 1024;
  EXPECT_EQ(StoreCapacity(starter, 500), 500);
  EXPECT_EQ(StoreCapacity(starter, 2000), 1024 - 128);
  starter.store_size = 10;
  EXPECT_EQ(StoreCapacity(starter, 500), 10);
  starter.open_files = 1 << 20;
  starter.store_size = 1 << 20;
  // All names, of 16 characters each, fit into one environment variable.
  EXPECT_LT(17 * StoreCapacity(starter, 0), 128 << 10);
  EXPECT_GT(StoreCapacity(starter, 0), 7000);
  starter.open_files = 100;
  EXPECT_EQ(StoreCapacity(starter, 500), 0);
}

}  // namespace
}  // namespace sluice::daemon
