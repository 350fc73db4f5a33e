#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/train/data/corpus.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::sluice::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns a corpus of ids 0, 1, 2, …: a token's value is its position.
std::unique_ptr<Corpus> Counting(const TempDir& dir, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) {
    bytes += static_cast<char>(i);
    bytes += '\0';
  }
  std::ofstream(dir.File("counting"), std::ios::binary) << bytes;
  auto corpus = Corpus::Open({.path = dir.File("counting"), .token_bytes = 2});
  SLUICE_CHECK_OK(corpus.status());
  return *std::move(corpus);
}

// Every token of a sequence reaches exactly one rank, with the next token as
// its label, whatever the chunks and ranks.
TEST(Dealer, DealsEachTokenOnceWithTheNextAsItsLabel) {
  const TempDir dir;
  const auto corpus = Counting(dir, 200);
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t seq_len : {5, 32, 33, 90}) {
      const stream::ChunkLayout layout(seq_len, 16, ranks);
      std::vector<int> seen(200, 0);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Dealer dealer(corpus.get(), layout, rank);
        std::vector<int64_t> ids(layout.total_local_rows(rank)), labels = ids;
        ASSERT_THAT(dealer.Deal(seq_len, ids, labels), IsOk());
        for (size_t i = 0; i < ids.size(); ++i) {
          EXPECT_EQ(labels[i], ids[i] + 1);
          ++seen[ids[i]];
        }
      }
      for (int64_t t = 0; t < 200; ++t) {
        EXPECT_EQ(seen[t], t >= seq_len && t < 2 * seq_len ? 1 : 0);
      }
    }
  }
}

TEST(Dealer, SequencesWrapAtTheEnd) {
  const TempDir dir;
  const auto corpus =
      Counting(dir, 31);  // three sequences of 10, and the last label
  Dealer dealer(corpus.get(), stream::ChunkLayout(10, 10, 1), 0);
  std::vector<int64_t> ids(10), labels(10);
  int64_t cursor = 0;
  for (int sequence = 0; sequence < 7; ++sequence) {
    ASSERT_THAT(dealer.Deal(cursor, ids, labels), IsOk());
    EXPECT_EQ(ids[0], sequence % 3 * 10);
    cursor = dealer.Next(cursor);
  }
}

TEST(Dealer, AnotherLengthContinuesWhereTheFirstStopped) {
  const TempDir dir;
  const auto corpus = Counting(dir, 200);
  Dealer brief(corpus.get(), stream::ChunkLayout(10, 10, 1), 0);
  Dealer longer(corpus.get(), stream::ChunkLayout(40, 10, 1), 0);
  int64_t cursor = 0;
  for (int i = 0; i < 3; ++i) cursor = brief.Next(cursor);
  std::vector<int64_t> ids(40), labels(40);
  ASSERT_THAT(longer.Deal(cursor, ids, labels), IsOk());
  EXPECT_EQ(ids[0], 30);
  EXPECT_EQ(longer.Next(cursor), 70);
}

TEST(Corpus, AFingerprintDependsOnTheTextAndNotOnItsPath) {
  const TempDir dir, other;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto one,
                              Counting(dir, 250)->Fingerprint());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto same,
                              Counting(other, 250)->Fingerprint());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto shorter,
                              Counting(other, 249)->Fingerprint());
  EXPECT_EQ(one, same);
  EXPECT_NE(one, shorter);
  std::string text(1 << 20, 'a');
  const auto fingerprint = [&] {
    std::ofstream(dir.File("long"), std::ios::binary) << text;
    const auto corpus = Corpus::Open({.path = dir.File("long")});
    SLUICE_CHECK_OK(corpus.status());
    const auto print = (*corpus)->Fingerprint();
    SLUICE_CHECK_OK(print.status());
    return *print;
  };
  const std::string whole = fingerprint();
  text.back() = 'b';
  EXPECT_NE(fingerprint(), whole);
  text.back() = 'a';
  EXPECT_EQ(fingerprint(), whole);
}

TEST(Dealer, TheErrorForTooLittleTextSaysHowMuchIsNeeded) {
  const TempDir dir;
  const auto corpus = Counting(dir, 32);
  EXPECT_THAT(CheckLength(*corpus, 31), IsOk());
  EXPECT_THAT(CheckLength(*corpus, 32),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("32 tokens"), HasSubstr("33"))));
}

}  // namespace
}  // namespace sluice::train
