#include "client/train/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CorpusTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = dir_.File(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }
  static std::vector<int64_t> All(Corpus& corpus) {
    std::vector<int64_t> tokens(corpus.tokens());
    EXPECT_THAT(corpus.Read(0, tokens), IsOk());
    return tokens;
  }
  sluice::testing::TempDir dir_;
};

template <typename T>
std::string Packed(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

std::string LlmcHeader(uint32_t magic, uint32_t version, uint32_t tokens) {
  std::string header = Packed<uint32_t>({magic, version, tokens});
  header.resize(1024, '\0');
  return header;
}

TEST_F(CorpusTest, AFileYieldsItsBytesAsTokens) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto corpus,
                              Corpus::Open({.path = Write("a.txt", "ab\xff")}));
  EXPECT_THAT(All(*corpus), ElementsAre('a', 'b', 255));
}

// Otherwise opening a pipe would wait for a writer.
TEST_F(CorpusTest, APipeOrADeviceIsRefusedAtOnce) {
  for (const char* name : {"pipe", "pipe.bin"}) {
    const std::string pipe = dir_.File(name);
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_THAT(Corpus::Open({.path = pipe, .token_bytes = 2}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(pipe + ": a pipe, socket or device")));
  }
  EXPECT_THAT(Corpus::Open({.path = "/dev/zero"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("write what it gives to a file")));
  // A pipe in the place of Megatron's index is not waited for either.
  const std::string ids = Write("ids.bin", Packed<uint16_t>({1, 2}));
  ASSERT_EQ(mkfifo(dir_.File("ids.idx").c_str(), 0600), 0);
  EXPECT_THAT(Corpus::Open({.path = ids}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no .idx beside it")));
}

TEST_F(CorpusTest, ABinaryFileIsRefusedUnlessItsTokenWidthIsGiven) {
  const std::string picture =
      Write("picture.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  EXPECT_THAT(Corpus::Open({.path = picture}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("picture.png: not text"),
                             HasSubstr("--token-bytes"))));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      auto ids,
      Corpus::Open({.path = picture, .token_bytes = 2, .vocab = 65536}));
  EXPECT_EQ(ids->tokens(), 8);
}

TEST_F(CorpusTest, AFolderYieldsItsTextFilesInSortedOrder) {
  Write("d/b.txt", "B");
  Write("d/a/z.txt", "Z");
  Write("d/.hidden", "H");
  Write("d/binary.so", std::string("x\0y", 3));
  Write("d/empty.txt", "");
  SLUICE_ASSERT_OK_AND_ASSIGN(auto corpus,
                              Corpus::Open({.path = dir_.File("d")}));
  EXPECT_THAT(All(*corpus), ElementsAre('Z', 'B'));
}

TEST_F(CorpusTest, AReadErrorNamesTheFileAndTheReason) {
  const std::string first = Write("d/1", "a"), second = Write("d/2", "b");
  SLUICE_ASSERT_OK_AND_ASSIGN(auto corpus,
                              Corpus::Open({.path = dir_.File("d")}));
  std::vector<int64_t> token(1);
  std::filesystem::remove(second);
  Write("d/2/within", "");
  EXPECT_THAT(corpus->Read(1, token).message(),
              AllOf(HasSubstr("read " + second), HasSubstr("directory")));
  std::ofstream(first, std::ios::trunc).flush();
  EXPECT_THAT(corpus->Read(0, token),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("it changed while training")));
}

TEST_F(CorpusTest, ASuffixChoosesFilesOfAFolder) {
  Write("d/a.py", "P");
  Write("d/b.txt", "T");
  SLUICE_ASSERT_OK_AND_ASSIGN(
      auto corpus, Corpus::Open({.path = dir_.File("d"), .suffix = ".py"}));
  EXPECT_THAT(All(*corpus), ElementsAre('P'));
}

TEST_F(CorpusTest, AReadMayCrossFiles) {
  Write("d/1", "abc");
  Write("d/2", "d");
  Write("d/3", "ef");
  SLUICE_ASSERT_OK_AND_ASSIGN(auto corpus,
                              Corpus::Open({.path = dir_.File("d")}));
  std::vector<int64_t> middle(4);
  ASSERT_THAT(corpus->Read(2, middle), IsOk());
  EXPECT_THAT(middle, ElementsAre('c', 'd', 'e', 'f'));
  EXPECT_THAT(corpus->Read(3, middle), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(CorpusTest, ReadsLlmcHeaders) {
  const std::string half = Write(
      "h.bin", LlmcHeader(20240520, 1, 3) + Packed<uint16_t>({1, 50256, 7}));
  const std::string word = Write(
      "w.bin", LlmcHeader(20240801, 7, 2) + Packed<uint32_t>({128000, 5}));
  SLUICE_ASSERT_OK_AND_ASSIGN(auto halves,
                              Corpus::Open({.path = half, .vocab = 50257}));
  EXPECT_THAT(All(*halves), ElementsAre(1, 50256, 7));
  SLUICE_ASSERT_OK_AND_ASSIGN(auto words,
                              Corpus::Open({.path = word, .vocab = 200000}));
  EXPECT_THAT(All(*words), ElementsAre(128000, 5));
}

TEST_F(CorpusTest, ReadsMegatronIndexes) {
  const std::string path = Write("m.bin", Packed<uint16_t>({9, 8, 300}));
  Write("m.idx", std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18));
  SLUICE_ASSERT_OK_AND_ASSIGN(auto corpus,
                              Corpus::Open({.path = path, .vocab = 301}));
  EXPECT_THAT(All(*corpus), ElementsAre(9, 8, 300));
  const std::string word = Write("w.bin", Packed<uint32_t>({70000, 5}));
  Write("w.idx", std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x04", 18));
  SLUICE_ASSERT_OK_AND_ASSIGN(corpus,
                              Corpus::Open({.path = word, .vocab = 70001}));
  EXPECT_THAT(All(*corpus), ElementsAre(70000, 5));
  // An index of another type is ignored.
  Write("w.idx", std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x05", 18));
  EXPECT_THAT(
      Corpus::Open({.path = word}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--token-bytes")));
}

TEST_F(CorpusTest, RawIdsNeedTheirWidth) {
  const std::string path = Write("raw.bin", Packed<uint16_t>({3, 4}));
  EXPECT_THAT(
      Corpus::Open({.path = path}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--token-bytes")));
  SLUICE_ASSERT_OK_AND_ASSIGN(auto corpus,
                              Corpus::Open({.path = path, .token_bytes = 2}));
  EXPECT_THAT(All(*corpus), ElementsAre(3, 4));
  EXPECT_THAT(
      Corpus::Open({.path = Write("odd.bin", "abc"), .token_bytes = 2}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 bytes")));
}

TEST_F(CorpusTest, ATruncatedLlmcFileIsRefused) {
  const std::string path =
      Write("cut.bin", LlmcHeader(20240520, 1, 100) + Packed<uint16_t>({1}));
  EXPECT_THAT(
      Corpus::Open({.path = path}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("100 tokens")));
}

TEST_F(CorpusTest, AnIdBeyondTheVocabularyIsNamed) {
  const std::string path = Write("raw.bin", Packed<uint16_t>({3, 999}));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      auto corpus,
      Corpus::Open({.path = path, .token_bytes = 2, .vocab = 500}));
  std::vector<int64_t> tokens(2);
  EXPECT_THAT(corpus->Read(0, tokens),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("999"), HasSubstr("500"))));
}

TEST_F(CorpusTest, AMissingOrEmptyPathAndATooSmallVocabularyAreRefused) {
  EXPECT_THAT(Corpus::Open({.path = "/no/such"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such")));
  std::filesystem::create_directory(dir_.File("e"));
  EXPECT_THAT(
      Corpus::Open({.path = dir_.File("e")}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds no text")));
  EXPECT_THAT(
      Corpus::Open({.path = Write("t", "abc"), .vocab = 100}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--vocab 100")));
}

}  // namespace
}  // namespace sluice::train
