#include "tests/bench/report.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace sluice::bench {
namespace {

using ::testing::HasSubstr;

struct Ran {
  int exit_code = 0;
  int measured = 0;  // number of measurements
};

// Runs a benchmark with one figure, which is 5 times its target.
Ran Bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench-x");
  std::vector<char*> argv;
  for (std::string& word : arguments) argv.push_back(word.data());
  Ran ran;
  ran.exit_code = Report(static_cast<int>(argv.size()), argv.data(), [&] {
    ++ran.measured;
    return std::vector<Entry>{{"x", 5, "s", 1, true, "detail"}};
  });
  return ran;
}

// Measuring may take minutes.
TEST(BenchReport, WrongArgumentsAreReportedBeforeMeasuring) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--jsn", "f"},
                                             {"--json"},
                                             {"--check"},
                                             {"--check", "ten"},
                                             {"--check", "0"},
                                             {"x"},
                                             {"--json", "/no/such/folder/f"}}) {
    const Ran ran = Bench(wrong);
    EXPECT_EQ(ran.exit_code, 2) << wrong[0];
    EXPECT_EQ(ran.measured, 0) << wrong[0];
  }
}

TEST(BenchReport, ListIsWrittenAndJudgedByTheFactor) {
  const testing::TempDir directory;
  const std::string path = directory.File("list.json");
  const Ran ran = Bench({"--json", path, "--check", "10"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.measured, 1);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("\"name\": \"x\", \"value\": 5"));
  EXPECT_EQ(Bench({"--check", "4"}).exit_code, 1);
  EXPECT_EQ(Bench({}).exit_code, 0);
}

}  // namespace
}  // namespace sluice::bench
