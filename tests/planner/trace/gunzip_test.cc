// Gzipped traces: what is inside is read like a plain one, and a file that is
// not whole is refused in one line whatever its reader made of it.
#include "planner/trace/gunzip.h"

#include <fmt/format.h>

#include <istream>
#include <random>
#include <sstream>

#include "gmock/gmock.h"
#include "planner/trace/read_trace.h"
#include "proto/plan/codec.h"
#include "tests/planner/gzipped.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using ::sluice::testing::IsOk;
using ::testing::HasSubstr;

constexpr const char* kCsv = "id,lower,upper,size\n1,0,2,8\n2,1,3,8\n";

absl::StatusOr<NamedTrace> ReadZipped(const std::string& bytes,
                                      TraceOptions options = {}) {
  options.file = "t";
  std::istringstream in(bytes);
  return ReadTrace(in, options);
}

std::string ZippedRefusal(const std::string& bytes) {
  const auto read = ReadZipped(bytes);
  if (read.ok()) return "accepted";
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(read.status().message());
  for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  return message;
}

// A trace as a CSV: its buffers with their names.
std::string ZippedRows(const NamedTrace& named) {
  return PlanCsv(named, std::vector<Bytes>(named.trace.buffers.size()));
}

std::string Text(const std::string& gzip, std::string* fault) {
  std::stringbuf from(gzip);
  Gunzip gunzip(&from);
  std::string text;
  std::string block(100000, '\0');
  while (const auto got = gunzip.sgetn(block.data(), 100000)) {
    text.append(block, 0, static_cast<size_t>(got));
  }
  *fault = gunzip.fault();
  return text;
}

TEST(Gunzip, ATextOfAnySizeComesBack) {
  std::mt19937 random(1);
  for (const size_t size : {0, 1, 65535, 65536, 65537, 1 << 20}) {
    for (const uint32_t letters : {1, 4, 256}) {
      std::string text(size, ' ');
      for (char& c : text) c = static_cast<char>(random() % letters);
      std::string fault;
      EXPECT_TRUE(Text(Gzipped(text), &fault) == text) << size;
      EXPECT_EQ(fault, "");
    }
  }
}

TEST(Gunzip, JoinedFilesAreOneTextAndATapesZerosAreNone) {
  std::string fault;
  EXPECT_EQ(Text(Gzipped("ab") + Gzipped("") + Gzipped("c") +
                     std::string(100000, '\0'),
                 &fault),
            "abc");
  EXPECT_EQ(fault, "");
}

TEST(Gunzip, ABombIsRefusedWhereItPassesTheLimit) {
  const std::string piece = Gzipped(std::string(1 << 20, ' '));
  std::string bomb;
  for (int k = 0; k < 255; ++k) bomb += piece;
  std::string fault;
  EXPECT_EQ(Text(bomb, &fault).size(), size_t{255} << 20);
  EXPECT_EQ(fault, "");  // every file may expand to 256 MiB
  for (int k = 0; k < 100; ++k) bomb += piece;
  EXPECT_LE(Text(bomb, &fault).size(), size_t{256} << 20);
  EXPECT_THAT(fault, HasSubstr("expands to more than 268435456 bytes, over "
                               "200 times its size"));
  EXPECT_THAT(fault, HasSubstr("gunzip it first"));
}

TEST(GzipTrace, EachFormatIsReadAsThePlainOne) {
  plan::RankProfile profile;
  profile.rank = Rank(0);
  profile.kinds[0].layers = 1;
  plan::SegmentKind segment{.name = "loss.full"};
  segment.trace = {{{0, 0, 2, Bytes(100)}, {1, 1, 3, Bytes(50)}}, 3};
  profile.segments.push_back(segment);
  const std::string texts[] = {
      kCsv, "malloc 1 10\nmalloc 2 20\nfree 1\n",
      R"({"traceEvents":[{"name":"[memory]","ph":"i","ts":1.5,"args":
        {"Addr":1,"Bytes":512,"Device Type":1,"Device Id":0}}]})",
      plan::Encode(profile),
      R"({"blocks":[{"size":100,"born_s":1.5,"died_s":2.5,"segment":"a"}]})"};
  for (const std::string& text : texts) {
    const auto plain = ReadZipped(text);
    const auto gzip = ReadZipped(Gzipped(text));
    ASSERT_THAT(plain, IsOk());
    ASSERT_THAT(gzip, IsOk());
    EXPECT_EQ(gzip->source, plain->source);
    EXPECT_EQ(ZippedRows(*gzip), ZippedRows(*plain));
    EXPECT_EQ(gzip->marks.size(), plain->marks.size());
  }
  EXPECT_THAT(ReadZipped(Gzipped(kCsv), {.format = TraceFormat::kMiniMalloc}),
              IsOk());
}

TEST(GzipTrace, OneThatIsCutOffSaysWhereAndIsNeverAShortTrace) {
  const std::string gzip = Gzipped(kCsv);
  for (size_t size = 2; size < gzip.size(); ++size) {
    EXPECT_EQ(ZippedRefusal(gzip.substr(0, size)),
              fmt::format("t: is a gzip file that is cut off after {} bytes: "
                          "copy or record it anew",
                          size));
  }
  // The rows of a longer one reach the reader first.
  std::string text = "id,lower,upper,size\n";
  for (int k = 0; k < 50000; ++k) text += fmt::format("{},0,2,8\n", k);
  const std::string longer = Gzipped(text);
  EXPECT_THAT(
      ZippedRefusal(longer.substr(0, longer.size() - 1)),
      HasSubstr(fmt::format("cut off after {} bytes", longer.size() - 1)));
}

TEST(GzipTrace, ADamagedByteIsFoundOrWithoutEffect) {
  const std::string gzip = Gzipped(kCsv);
  const std::string rows = ZippedRows(*ReadZipped(gzip));
  int found = 0;
  for (size_t at = 2; at < gzip.size(); ++at) {
    std::string damaged = gzip;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x5a);
    const auto read = ReadZipped(damaged);
    if (read.ok()) {
      EXPECT_EQ(ZippedRows(*read), rows) << at;  // the date, the system
      continue;
    }
    ++found;
    EXPECT_THAT(ZippedRefusal(damaged), HasSubstr("t: is a ")) << at;
    EXPECT_THAT(ZippedRefusal(damaged), HasSubstr("gzip file")) << at;
  }
  EXPECT_GE(found, static_cast<int>(gzip.size()) - 10);
  EXPECT_EQ(ZippedRefusal("\x1f\x8b rest"),
            "t: is a damaged gzip file (byte 4: unknown compression method): "
            "copy or record it anew");
}

TEST(GzipTrace, WhatIsInsideIsJudgedLikeAPlainOne) {
  EXPECT_THAT(ZippedRefusal(Gzipped("")), HasSubstr("t: is empty"));
  EXPECT_THAT(ZippedRefusal(Gzipped("hello\n")),
              HasSubstr("begins with 'hello'"));
  EXPECT_THAT(ZippedRefusal(Gzipped("id,lower,upper,size\n1,0,x,8\n")),
              HasSubstr("t:2:5: upper = 'x'"));
  EXPECT_THAT(ZippedRefusal(Gzipped(Gzipped(kCsv))),
              HasSubstr("is compressed twice: gunzip it first"));
  EXPECT_THAT(ZippedRefusal(Gzipped(kCsv) + "3,0,2,8\n"),
              HasSubstr("something else after its end (byte "));
}

TEST(GzipTrace, ADiskThatFailsIsNotAFileThatIsCutOff) {
  class Failing : public std::stringbuf {
   public:
    explicit Failing(const std::string& text) : std::stringbuf(text) {}

   protected:
    std::streamsize xsgetn(char* to, std::streamsize n) override {
      const std::streamsize got = std::stringbuf::xsgetn(to, n);
      if (got == 0) throw std::ios_base::failure("reading");
      return got;
    }
  };
  const std::string gzip = Gzipped(kCsv);
  Failing failing(gzip.substr(0, gzip.size() - 4));
  std::istream in(&failing);
  const auto named = ReadTrace(in, {.file = "t"});
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(std::string(named.status().message()), "t: cannot be read");
}

}  // namespace
}  // namespace sluice::planner
