#include "proto/base/shortage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "proto/base/status.h"

namespace sluice {
namespace {

TEST(Shortage, EachErrnoMapsToTheResourceThatRanOut) {
  EXPECT_EQ(ShortageOf(ErrnoStatus(ENOSPC, "write")), Shortage::kDisk);
  EXPECT_EQ(ShortageOf(ErrnoStatus(EDQUOT, "write")), Shortage::kDisk);
  EXPECT_EQ(ShortageOf(ErrnoStatus(EMFILE, "open")), Shortage::kOpenFiles);
  EXPECT_EQ(ShortageOf(ErrnoStatus(ENFILE, "open")), Shortage::kOpenFiles);
  EXPECT_EQ(ShortageOf(ErrnoStatus(ENOMEM, "mmap")), Shortage::kHostMemory);
  EXPECT_EQ(ShortageOf(ErrnoStatus(ENOENT, "open")), Shortage::kNone);
}

TEST(Shortage, OnlyAMemoryShortageMeansThatARunDoesNotFit) {
  EXPECT_TRUE(IsOutOfMemory(ShortOf(Shortage::kGpuMemory, "")));
  EXPECT_TRUE(IsOutOfMemory(ShortOf(Shortage::kHostMemory, "")));
  EXPECT_FALSE(IsOutOfMemory(ShortOf(Shortage::kDisk, "")));
  EXPECT_FALSE(IsOutOfMemory(ShortOf(Shortage::kOpenFiles, "")));
  EXPECT_FALSE(IsOutOfMemory(absl::ResourceExhaustedError("the peer's queue")));
}

TEST(Shortage, AnAnnotatedStatusKeepsItsMark) {
  const absl::Status status =
      Annotate(ErrnoStatus(ENOSPC, "write x"), "save step 3");
  EXPECT_EQ(ShortageOf(status), Shortage::kDisk);
  EXPECT_EQ(status.message().find("save step 3: write x"), 0u);
}

TEST(Shortage, ALaterMarkDoesNotReplaceTheFirst) {
  const absl::Status status = ErrnoStatus(EMFILE, "map the lease");
  EXPECT_EQ(ShortageOf(Mark(status, Shortage::kGpuMemory)),
            Shortage::kOpenFiles);
  EXPECT_TRUE(Mark(absl::OkStatus(), Shortage::kDisk).ok());
}

TEST(Shortage, NamesSurviveARoundTrip) {
  for (const Shortage each :
       {Shortage::kNone, Shortage::kGpuMemory, Shortage::kHostMemory,
        Shortage::kDisk, Shortage::kOpenFiles}) {
    EXPECT_EQ(ShortageNamed(Name(each)), each);
  }
  EXPECT_EQ(ShortageNamed("luck"), std::nullopt);
}

}  // namespace
}  // namespace sluice
