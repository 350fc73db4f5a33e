// Tests that plain data is read back from its bytes, and other bytes are
// refused.
#include "daemon/state/fields.h"

#include <limits>
#include <random>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/shortage.h"

namespace sluice::daemon {
namespace {

enum class Colour { kRed, kBlue = 7 };

struct Point {
  int64_t x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};
template <typename Ar>
void Fields(Ar& ar, Is<Point> auto& point) {
  ar(1, point.x);
  ar(2, point.y);
}

// The struct Point of a later version: `name` and `more` are new.
struct Later {
  int64_t x = 0;
  std::string name;
  double y = 0;
  std::vector<int> more;
};
template <typename Ar>
void Fields(Ar& ar, Is<Later> auto& later) {
  ar(1, later.x);
  ar(2, later.y);
  ar(3, later.name);
  ar(9, later.more);
}

struct Everything {
  bool flag = false;
  int small = 0;
  int64_t least = 0;
  uint64_t most = 0;
  Colour colour = Colour::kRed;
  SessionId id;
  Bytes bytes;
  double number = 0;
  absl::Time at;
  std::string text;
  std::optional<Point> there, not_there;
  std::vector<Point> points = {Point{}};  // not empty before it is read
  std::set<std::string> names;
  std::map<SessionId, std::optional<int>> maybe;
  std::array<double, 2> two = {0, 0};
  std::variant<absl::Status, Point, std::string> either;
  std::pair<int, std::string> pair;
  std::shared_ptr<const Point> shared, same, none;
};
template <typename Ar>
void Fields(Ar& ar, Is<Everything> auto& all) {
  ar(1, all.flag);
  ar(2, all.small);
  ar(3, all.least);
  ar(4, all.most);
  ar(5, all.colour);
  ar(6, all.id);
  ar(7, all.bytes);
  ar(8, all.number);
  ar(9, all.at);
  ar(10, all.text);
  ar(11, all.there);
  ar(12, all.not_there);
  ar(13, all.points);
  ar(14, all.names);
  ar(15, all.maybe);
  ar(16, all.two);
  ar(17, all.either);
  ar(18, all.pair);
  ar(19, all.shared);
  ar(20, all.same);
  ar(21, all.none);
}

Everything Sample() {
  Everything all;
  all.flag = true;
  all.small = -3;
  all.least = std::numeric_limits<int64_t>::min();
  all.most = std::numeric_limits<uint64_t>::max();
  all.colour = Colour::kBlue;
  all.id = SessionId(300);
  all.bytes = Bytes(-1);
  all.number = -0.1;
  all.at = absl::UnixEpoch() + absl::Seconds(10) / 3;
  all.text = std::string("a\0b", 3);
  all.there = Point{1, 2};
  all.points = {{}, {-5, 0.25}};
  all.names = {"a", ""};
  all.maybe = {{SessionId(1), 4}, {SessionId(2), std::nullopt}};
  all.two = {1, 2};
  all.either = ShortOf(Shortage::kHostMemory, "too little");
  all.pair = {2, "x"};
  all.shared = std::make_shared<const Point>(Point{9, 9});
  all.same = all.shared;
  return all;
}

struct Written {
  std::string bytes;
  Objects objects;  // that `bytes` refer to
};

template <typename T>
Written Write(const T& value) {
  Written written;
  FieldWriter(&written.bytes, &written.objects).Element(value);
  for (auto& [number, bytes] : written.objects.TakeNew()) {
    written.objects.Add(number, bytes);
  }
  return written;
}

template <typename T>
bool Read(const std::string& bytes, Objects& objects, T& to) {
  FieldReader reader(bytes, &objects);
  reader.Element(to);
  return reader.Done();
}

TEST(FieldsTest, FieldsAreReadAsWritten) {
  const Everything all = Sample();
  Written written = Write(all);
  Everything read;
  read.not_there.reset();
  ASSERT_TRUE(Read(written.bytes, written.objects, read));
  EXPECT_EQ(read.flag, all.flag);
  EXPECT_EQ(read.small, all.small);
  EXPECT_EQ(read.least, all.least);
  EXPECT_EQ(read.most, all.most);
  EXPECT_EQ(read.colour, all.colour);
  EXPECT_EQ(read.id, all.id);
  EXPECT_EQ(read.bytes, all.bytes);
  EXPECT_EQ(read.number, all.number);
  EXPECT_EQ(read.at, all.at);
  EXPECT_EQ(read.text, all.text);
  EXPECT_EQ(read.there, all.there);
  EXPECT_EQ(read.not_there, all.not_there);
  EXPECT_EQ(read.points, all.points);
  EXPECT_EQ(read.names, all.names);
  EXPECT_EQ(read.maybe, all.maybe);
  EXPECT_EQ(read.two, all.two);
  EXPECT_EQ(read.either, all.either);
  EXPECT_EQ(read.pair, all.pair);
  EXPECT_EQ(*read.shared, *all.shared);
  EXPECT_EQ(read.shared, read.same);  // still one shared object
  EXPECT_EQ(read.none, nullptr);
}

TEST(FieldsTest, TimesAreReadBackExactly) {
  for (const absl::Time time :
       {absl::UnixEpoch(), absl::InfiniteFuture(), absl::InfinitePast(),
        absl::UnixEpoch() + absl::Nanoseconds(1) / 4,
        absl::UnixEpoch() - absl::Nanoseconds(1) / 4,
        absl::UnixEpoch() - absl::Seconds(10) / 3,
        absl::UnixEpoch() + absl::Hours(1e6) + absl::Nanoseconds(3) / 4}) {
    Written written = Write(time);
    absl::Time read;
    ASSERT_TRUE(Read(written.bytes, written.objects, read));
    EXPECT_EQ(read, time);
    const absl::Duration length = time - absl::UnixEpoch();
    Written duration = Write(length);
    absl::Duration read_length;
    ASSERT_TRUE(Read(duration.bytes, duration.objects, read_length));
    EXPECT_EQ(read_length, length);
  }
}

TEST(FieldsTest, FieldsKnownToBothVersionsAreRead) {
  Written newer = Write(Later{.x = 3, .name = "n", .y = 0.5, .more = {1, 2}});
  Point point;
  ASSERT_TRUE(Read(newer.bytes, newer.objects, point));
  EXPECT_EQ(point, (Point{3, 0.5}));
  Written older = Write(Point{4, 1.5});
  Later later{.name = "as it was made"};
  ASSERT_TRUE(Read(older.bytes, older.objects, later));
  EXPECT_EQ(later.x, 4);
  EXPECT_EQ(later.y, 1.5);
  EXPECT_EQ(later.name, "as it was made");
}

TEST(FieldsTest, CutOffOrLongerBytesAreRefused) {
  Written written = Write(Sample());
  for (size_t size = 0; size < written.bytes.size(); ++size) {
    Everything read;
    EXPECT_FALSE(Read(written.bytes.substr(0, size), written.objects, read));
  }
  Everything read;
  EXPECT_FALSE(Read(written.bytes + "x", written.objects, read));
}

TEST(FieldsTest, AFieldOfAnotherTypeIsRefused) {
  Written text = Write(std::pair<Later, int>{});
  std::string bytes;
  Objects none;
  FieldWriter writer(&bytes, &none);
  writer(1, std::string("not a number"));
  std::string whole;
  FieldWriter(&whole, &none).Element(bytes);
  Point point;
  EXPECT_FALSE(Read(whole, none, point));
}

TEST(FieldsTest, AMissingObjectIsRefused) {
  Written written = Write(Sample());
  Objects none;
  Everything read;
  EXPECT_FALSE(Read(written.bytes, none, read));
}

TEST(FieldsTest, AnyBytesAreReadOrRefused) {
  std::mt19937 random(1);
  const std::string sample = Write(Sample()).bytes;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = sample;
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Objects none;
    Everything read;
    Read(bytes, none, read);
  }
}

}  // namespace
}  // namespace sluice::daemon
