#include "proto/base/user_map.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(UserMap, TheOverflowUserMayBeUnmappedUnlessAllUsersAreMapped) {
  for (const char* every : {"         0          0 4294967295\n",
                            "0 0 4294967294\n4294967294 4294967294 1\n"}) {
    EXPECT_FALSE(UserMap::Of(every).MayBeUnmapped(65534)) << every;
  }
  for (const char* some :
       {"         0       1000          1\n", "0 100000 65536\n", ""}) {
    EXPECT_TRUE(UserMap::Of(some).MayBeUnmapped(65534)) << some;
    EXPECT_FALSE(UserMap::Of(some).MayBeUnmapped(1000)) << some;
  }
}

TEST(UserMap, UsersOfAllLinesAreCounted) {
  EXPECT_EQ(UserMap::Of("0 1000 1\n").mapped, 1u);
  EXPECT_EQ(UserMap::Of("0 1000 1\n1 100000 65536\n").mapped, 65537u);
}

}  // namespace
}  // namespace sluice
