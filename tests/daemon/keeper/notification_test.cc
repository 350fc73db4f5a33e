#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "daemon/keeper/notify_receiver.h"
#include "daemon/store/starter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using Kind = Notification::Kind;
using ::testing::HasSubstr;

std::vector<UniqueFd> Memfds(int count) {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < count; ++i) {
    fds.emplace_back(memfd_create("test", MFD_CLOEXEC));
  }
  return fds;
}

TEST(Notification, ANotificationIsParsedToTheDaemonsRequest) {
  const auto kind = [](std::string_view text) {
    const auto said = ParseNotification(text);
    EXPECT_THAT(said, IsOk()) << text;
    return said.ok() ? said->kind : Kind::kOther;
  };
  EXPECT_EQ(kind("FDSTORE=1\nFDNAME=a-1\nFDPOLL=0"), Kind::kPut);
  EXPECT_EQ(ParseNotification("FDNAME=a-1\nFDSTORE=1\n")->name, "a-1");
  EXPECT_EQ(kind("FDSTOREREMOVE=1\nFDNAME=a"), Kind::kRemove);
  EXPECT_EQ(kind("BARRIER=1"), Kind::kBarrier);
  EXPECT_EQ(kind("READY=1\nSTATUS=2 GPUs"), Kind::kOther);
  EXPECT_EQ(kind("FDNAME=anything at all"), Kind::kOther);
  EXPECT_EQ(kind("FDSTORE=0"), Kind::kOther);
}

TEST(Notification, AMessageWithoutExactlyOneRequestIsRefused) {
  for (const std::string& text : std::vector<std::string>{
           "", "FDSTORE=1", "FDSTORE=1\nFDNAME=", "FDSTORE=1\nFDNAME=A",
           "FDSTORE=1\nFDNAME=a\nFDNAME=b", "BARRIER=1\nREADY=1",
           "FDSTORE=1\nFDSTOREREMOVE=1\nFDNAME=a",
           "FDSTORE=1\nFDNAME=seventeen-letters",
           "FDSTORE=1\nFDNAME=a\nBARRIER=1", std::string("READY=1\0", 8),
           std::string(kMaxNotification + 1, 'x')}) {
    EXPECT_THAT(ParseNotification(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

// Tries random bytes, and messages with bytes changed, dropped and doubled.
TEST(Notification, RandomBytesAreRefusedOrAValidRequest) {
  const std::string seeds[] = {"FDSTORE=1\nFDNAME=a-1\nFDPOLL=0",
                               "FDSTOREREMOVE=1\nFDNAME=b", "BARRIER=1",
                               "READY=1\nSTATUS=x"};
  constexpr unsigned kSeed = 1;
  std::mt19937 random(kSeed);
  int understood = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text = round % 4 == 0 ? std::string(random() % 200, '\0')
                                      : seeds[random() % 4];
    if (round % 4 == 0) {
      for (char& c : text) c = static_cast<char>(random());
    }
    for (unsigned edits = random() % 3; edits > 0 && !text.empty(); --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 9);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), 12));
      }
    }
    const auto said = ParseNotification(text);
    if (!said.ok()) continue;
    const bool names = said->kind == Kind::kPut || said->kind == Kind::kRemove;
    ASSERT_EQ(IsDescriptorName(said->name), names)
        << "seed " << kSeed << " round " << round << ": " << text;
    understood += names;
  }
  EXPECT_GT(understood, 1000);
}

TEST(KeptDescriptors, ADescriptorIsHeldUntilItIsRemoved) {
  KeptDescriptors kept(2);
  auto one = Memfds(1);
  const int fd = one[0].get();
  ASSERT_THAT(kept.Apply({Kind::kPut, "a"}, std::move(one)), IsOk());
  ASSERT_EQ(kept.all().size(), 1);
  EXPECT_EQ(kept.all().at("a").get(), fd);
  EXPECT_THAT(kept.Apply({Kind::kRemove, "other"}, {}), IsOk());
  EXPECT_THAT(kept.Apply({Kind::kRemove, "a"}, {}), IsOk());
  EXPECT_TRUE(kept.all().empty());
  EXPECT_EQ(dup(fd), -1);  // closed
}

TEST(KeptDescriptors, DescriptorsAreHeldUpToTheLimit) {
  KeptDescriptors kept(1);
  ASSERT_THAT(kept.Apply({Kind::kPut, "a"}, Memfds(1)), IsOk());
  EXPECT_THAT(kept.Apply({Kind::kPut, "b"}, Memfds(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the 1 of --max-descriptors")));
  EXPECT_THAT(kept.Apply({Kind::kPut, "a"}, Memfds(1)), IsOk());  // replaced
  EXPECT_THAT(kept.Apply({Kind::kPut, "a"}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(kept.Apply({Kind::kPut, "a"}, Memfds(2)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(kept.all().size(), 1);
}

TEST(KeptDescriptors, ABarrierIsAnsweredByClosingItsDescriptor) {
  KeptDescriptors kept(1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd answer(ends[0]);
  std::vector<UniqueFd> sent;
  sent.emplace_back(ends[1]);
  EXPECT_THAT(kept.Apply({Kind::kBarrier, ""}, std::move(sent)), IsOk());
  char byte;
  EXPECT_EQ(read(answer.get(), &byte, 1), 0);  // end of file
}

}  // namespace
}  // namespace sluice::daemon
