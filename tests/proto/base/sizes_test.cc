// Tests how sizes and counts are parsed, in flags and in files.
#include <string>

#include "gmock/gmock.h"
#include "proto/base/units.h"
#include "tests/support/status_matchers.h"

namespace sluice {
namespace {

using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(Sizes, MbIsAMillionBytesAndMibIsTwoToTheTwenty) {
  EXPECT_EQ(ParseBytes("1MB").value(), Bytes(1'000'000));
  EXPECT_EQ(ParseBytes("1MiB").value(), Bytes(1 << 20));
  EXPECT_EQ(ParseBytes("40GB").value(), Bytes(40'000'000'000));
  EXPECT_EQ(ParseBytes("40GiB").value(), GiB(40));
  EXPECT_EQ(ParseBytes("3kB").value(), Bytes(3000));
  EXPECT_EQ(ParseBytes("3 kib").value(), KiB(3));
  EXPECT_EQ(ParseBytes("1.5TiB").value(), GiB(1536));
  EXPECT_EQ(ParseBytes("2tb").value(), Bytes(2'000'000'000'000));
  EXPECT_EQ(ParseBytes("4096B").value(), Bytes(4096));
}

// Guards against a `budget set --gpu 40` that sets 40 bytes silently.
TEST(Sizes, ANumberWithoutAUnitIsRefusedWithWhatToWrite) {
  EXPECT_THAT(
      ParseBytes("40"),
      StatusIs(kInvalid, AllOf(HasSubstr("names no unit"), HasSubstr("40GiB"),
                               HasSubstr("40GB"), HasSubstr("40B"))));
  EXPECT_EQ(ParseBytes("0").value(), Bytes(0)) << "0 needs no unit";
}

TEST(Sizes, ABareGIsRefusedAsAmbiguous) {
  for (const char* text : {"40G", "40 g"}) {
    EXPECT_THAT(ParseBytes(text),
                StatusIs(kInvalid, AllOf(HasSubstr("write 40GB or 40GiB"))));
  }
}

TEST(Sizes, TextThatIsNoSizeIsQuotedInTheError) {
  for (const char* text :
       {"", "much", "-5", "-5MiB", "1e3MiB", "5 parsecs", "1.2.3MiB", "inf",
        "nanB", "99999999TiB", ".B", "5MiBB", "ib"}) {
    EXPECT_THAT(ParseBytes(text),
                StatusIs(kInvalid, HasSubstr("'" + std::string(text) +
                                             "' is not a size")));
  }
}

TEST(Sizes, AnExactSizeReadsBackToTheByte) {
  EXPECT_EQ(ExactBytes(MiB(36)), "36MiB");
  EXPECT_EQ(ExactBytes(GiB(1) + KiB(4)), "1048580KiB");
  EXPECT_EQ(ExactBytes(GiB(1) * 1024 * 2048), "2048TiB");
  EXPECT_EQ(FormatBytes(GiB(1) * 1024 * 2048), "2048 TiB");
  for (const Bytes size : {Bytes(0), Bytes(1), Bytes(1000), MiB(3) + Bytes(7),
                           GiB(5000), Bytes(INT64_C(123456789012347))}) {
    EXPECT_EQ(ParseBytes(ExactBytes(size)).value(), size);
  }
}

TEST(Counts, KIsTwoToTheTenAndMTwoToTheTwenty) {
  EXPECT_EQ(ParseCount("131072").value(), 131072);
  EXPECT_EQ(ParseCount("4K").value(), 4096);
  EXPECT_EQ(ParseCount("1.5M").value(), 3 << 19);
  EXPECT_EQ(ParseCount("0.5k").value(), 512);
  EXPECT_EQ(ParseCount("-5").value(), -5) << "each flag checks its own range";
  for (const char* text : {"", "K", "1.3K", "1.5", "4 K", "1G", "many", "--5",
                           "1e6", "99999999999M", "9999999999999999999999"}) {
    EXPECT_THAT(ParseCount(text),
                StatusIs(kInvalid, HasSubstr("'" + std::string(text) + "'")));
  }
}

}  // namespace
}  // namespace sluice
