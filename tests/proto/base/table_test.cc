#include "proto/base/table.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Names = Table<std::string, int>;

// Returns "key=row" for each changed row, or "key" if it was erased.
std::vector<std::string> Changed(Names& names) {
  std::vector<std::string> changed;
  names.TakeChanged([&](const std::string& key, const int* row) {
    changed.push_back(row ? key + "=" + std::to_string(*row) : key);
  });
  return changed;
}

TEST(Table, EachChangedRowIsReportedOnce) {
  Names names;
  names.Insert("a", 1);
  names.Insert("b", 2);
  EXPECT_THAT(Changed(names), ElementsAre("a=1", "b=2"));
  EXPECT_THAT(Changed(names), IsEmpty());
  names.Edit("b") = 3;
  names.Put("c") = 4;
  names.Edit("b") = 5;
  names.erase("a");
  EXPECT_THAT(Changed(names), ElementsAre("a", "b=5", "c=4"));
  EXPECT_THAT(Changed(names), IsEmpty());
}

// A daemon without a store never asks for changes. Guards against recording
// changes for the daemon's whole life.
TEST(Table, ChangesAreRecordedOnlyAfterTheFirstQuery) {
  Names names;
  for (int i = 0; i < 1000; ++i) {
    names.Put(i % 2 == 0 ? "even" : "odd") = i;
  }
  EXPECT_EQ(names.noted(), 0u);
  EXPECT_THAT(Changed(names), ElementsAre("even=998", "odd=999"));
  names.Edit("odd") = 1;
  EXPECT_EQ(names.noted(), 1u);
  names.TouchAll();
  names.Edit("odd") = 3;
  names.erase("even");
  EXPECT_EQ(names.noted(), 0u);
  EXPECT_THAT(Changed(names), ElementsAre("odd=3"));
}

// Guards against a read of the row's key after the row is freed.
TEST(Table, ARowIsErasedByAReferenceToItsKey) {
  Names names;
  names.Insert("a name too long to be held without memory of its own", 1);
  Changed(names);
  names.erase(names.begin()->first);
  EXPECT_THAT(
      Changed(names),
      ElementsAre("a name too long to be held without memory of its own"));
}

}  // namespace
}  // namespace sluice
