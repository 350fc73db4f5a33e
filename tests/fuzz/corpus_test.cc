// Runs each reader on its corpus and on seeded mutations of it, without
// libFuzzer, so that every build can run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/readers.h"
#include "tests/support/places.h"

namespace sluice::fuzz {
namespace {

std::vector<std::string> CorpusOf(const Reader& reader) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           InTree(std::string("tests/fuzz/corpus/") + reader.name))) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in),
                        std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Applies one change like libFuzzer's: changes a byte, removes or repeats a run
// of bytes, inserts a piece of another input, writes one of kEdges, or removes
// the end.
std::string Mutated(std::string text, const std::vector<std::string>& corpus,
                    std::mt19937& random) {
  static const char* const kEdges[] = {"9223372036854775807",
                                       "-9223372036854775808",
                                       "18446744073709551615",
                                       "9007199254740993",
                                       "1e309",
                                       "-0",
                                       "NaN",
                                       "\"\"",
                                       "\xff\xfe",
                                       "1152921504606846976",
                                       "[[[[[[[[",
                                       "\\u0000"};
  const size_t at = text.empty() ? 0 : random() % text.size();
  const size_t length = random() % 24;
  switch (random() % 6) {
    case 0:
      if (!text.empty()) text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(at, length));
      break;
    case 3: {
      const std::string& other = corpus[random() % corpus.size()];
      const size_t from = other.empty() ? 0 : random() % other.size();
      text.insert(at, other.substr(from, 4 * length));
      break;
    }
    case 4:
      text.replace(at, std::min<size_t>(length / 4, text.size() - at),
                   kEdges[random() % std::size(kEdges)]);
      break;
    default:
      text.resize(at);
  }
  return text;
}

class Corpus : public testing::TestWithParam<Reader> {};

TEST_P(Corpus, EveryInputIsReadOrGetsOneClearLine) {
  const std::vector<std::string> corpus = CorpusOf(GetParam());
  ASSERT_GE(corpus.size(), 5);
  for (const std::string& input : corpus) GetParam().read(input);
}

TEST_P(Corpus, EveryMutationIsReadOrGetsOneClearLine) {
  const std::vector<std::string> corpus = CorpusOf(GetParam());
  ASSERT_FALSE(corpus.empty());
  std::mt19937 random(20261121);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  int tried = 0;
  // The count limits the tries, so that a failure repeats. In slow builds the
  // clock ends the loop earlier.
  for (; tried < 20000 && std::chrono::steady_clock::now() < end; ++tried) {
    std::string input = corpus[random() % corpus.size()];
    for (uint32_t k = 1 + random() % 4; k > 0; --k) {
      input = Mutated(std::move(input), corpus, random);
    }
    GetParam().read(input);
  }
  RecordProperty("inputs", tried);
  EXPECT_GT(tried, 100);
}

INSTANTIATE_TEST_SUITE_P(Readers, Corpus, testing::ValuesIn(Readers()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace sluice::fuzz
