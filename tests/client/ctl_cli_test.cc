// Runs sluicectl as a process: its help, and one-line errors with status 2.
#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "tests/client/scripted_daemon.h"
#include "tests/support/child.h"

namespace sluice::client {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::testing::HasSubstr;

ChildResult Ctl(std::vector<std::string> arguments,
                const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), BinaryPath("sluicectl"));
  return Child::Spawn(arguments, environment)->Join();
}

void ExpectOneLine(const ChildResult& result, const std::string& what) {
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: "));
  EXPECT_THAT(result.err, HasSubstr(what));
}

TEST(SluicectlCli, AMissingSocketIsOneErrorLine) {
  ExpectOneLine(Ctl({"status", "--socket", "/nonexistent/s"}),
                "no socket at /nonexistent/s: is sluiced running?");
  ExpectOneLine(Ctl({"status"}, {"SLUICE_SOCKET=/nonexistent/t"}),
                "no socket at /nonexistent/t");
}

TEST(SluicectlCli, AWrongOrMissingWordIsNamed) {
  ExpectOneLine(Ctl({"statsu"}), "statsu");
  ExpectOneLine(Ctl({}), "say what to do");
  ExpectOneLine(Ctl({"plan", "show"}), "ID");
  ExpectOneLine(Ctl({"evict"}), "JOB");
}

TEST(SluicectlCli, ATypoGetsASuggestion) {
  ExpectOneLine(Ctl({"statsu"}), "did you mean status?");
  ExpectOneLine(Ctl({"budget", "sett"}), "did you mean set?");
  ExpectOneLine(Ctl({"budget", "set", "--jbo", "a"}), "did you mean --job?");
  ExpectOneLine(Ctl({"plan", "trian", "--gpus", "8"}), "did you mean train?");
}

// Guards against help that shows the same examples for every command.
TEST(SluicectlCli, HelpOfACommandHasItsOwnExamples) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"status"},
                                                          {"jobs"},
                                                          {"doctor"},
                                                          {"support-bundle"},
                                                          {"budget"},
                                                          {"budget", "set"},
                                                          {"reserve"},
                                                          {"evict"},
                                                          {"plan"},
                                                          {"plan", "show"},
                                                          {"plan", "train"},
                                                          {"plan", "memory"},
                                                          {"plan", "swap"},
                                                          {"plan", "validate"}};
  std::set<std::string> footers;
  for (std::vector<std::string> command : commands) {
    std::string example = "\n  sluicectl";
    for (const std::string& word : command) example += " " + word;
    command.push_back("--help");
    const ChildResult help = Ctl(command);
    EXPECT_EQ(help.exit_code, 0);
    const size_t at = help.out.find("Examples:\n");
    ASSERT_NE(at, std::string::npos) << example;
    const std::string footer = help.out.substr(at);
    EXPECT_THAT(footer, HasSubstr(example));
    EXPECT_TRUE(footers.insert(footer).second) << example;
  }
}

TEST(SluicectlCli, TheVersionIsPrinted) {
  EXPECT_THAT(Ctl({"--version"}).out, HasSubstr("sluicectl 0."));
}

TEST(SluicectlCli, ABudgetWithoutOwnerLimitOrSizeIsRefused) {
  ExpectOneLine(Ctl({"budget", "set", "--gpu", "1GiB"}), "whose budget?");
  ExpectOneLine(
      Ctl({"budget", "set", "--job", "a", "--user", "0", "--gpu", "1GiB"}),
      "whose budget?");
  ExpectOneLine(Ctl({"budget", "set", "--job", "a"}), "which limit?");
  ExpectOneLine(
      Ctl({"budget", "set", "--job", "a", "--cgroup", "/b", "--gpu", "1GiB"}),
      "--cgroup is of a user");
  ExpectOneLine(Ctl({"budget", "set", "--job", "a", "--gpu", "much"}),
                "--gpu 'much' is not a size");
  ExpectOneLine(Ctl({"budget", "set", "--job", "a", "--gpu", "40"}),
                "names no unit: write 40GiB");
  ExpectOneLine(Ctl({"budget", "set", "--job", "a", "--host", "40"}),
                "--host '40' is not a size");
  ExpectOneLine(Ctl({"budget", "set", "--job", "a", "--gpu", "0"}),
                "above 0, or 'unlimited'");
  ExpectOneLine(
      Ctl({"budget", "set", "--user", "no-such-user", "--gpu", "1GiB"}),
      "no user 'no-such-user'");
}

TEST(SluicectlCli, AReservationWithoutAPoolOrASizeIsRefused) {
  const auto reserve = [](std::vector<std::string> flags) {
    std::vector<std::string> command = {"reserve", "--user", "0", "--memory"};
    command.insert(command.end(), flags.begin(), flags.end());
    return Ctl(command);
  };
  ExpectOneLine(reserve({"1GiB"}), "memory of which pool?");
  ExpectOneLine(reserve({"1GiB", "--gpu", "0", "--numa", "0"}),
                "memory of which pool?");
  ExpectOneLine(reserve({"40", "--gpu", "0"}), "names no unit");
  ExpectOneLine(reserve({"0GiB", "--gpu", "0"}), "above 0, or 'none'");
}

TEST(SluicectlCli, APlanIdThatIsNoNumberIsRefusedWithoutADaemon) {
  ExpectOneLine(Ctl({"--socket", "/nonexistent/s", "plan", "show", "x"}),
                "plan 'x' is not a number");
}

// Guards against an empty reason, a NaN that is never over, and a word that
// steers the terminal.
TEST(SluicectlCli, AValueThatCannotBeIsRefusedByName) {
  ExpectOneLine(Ctl({"budget", "set", "--job", "\xff", "--gpu", "1GiB"}),
                "no job is called '?'");
  ExpectOneLine(Ctl({"evict", "\xff"}), "no job is called '?'");
  ExpectOneLine(Ctl({"budget", "set", "--user", "\x1b[2J", "--gpu", "1GiB"}),
                "there is no user '?[2J'");
  ExpectOneLine(Ctl({"bandwidth", "measure", "--seconds", "nan"}),
                "'nan' is no number from 0.1 to 60");
}

TEST(SluicectlCli, AMissingAdminSocketIsOneErrorLine) {
  ExpectOneLine(Ctl({"--socket", "/nonexistent/session.sock", "evict", "a"}),
                "no socket at /nonexistent/admin.sock");
  ExpectOneLine(Ctl({"--admin-socket", "/nonexistent/x", "evict", "a"}),
                "no socket at /nonexistent/x");
}

TEST(SluicectlCli, HelpShowsExamples) {
  const ChildResult result = Ctl({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("sluicectl plan show 3"));
}

TEST(SluicectlCli, HelpShowsDefaultsInSeconds) {
  EXPECT_THAT(Ctl({"top", "--help"}).out, HasSubstr("[0.1 - 3600]=1\n"));
  EXPECT_THAT(Ctl({"bandwidth", "measure", "--help"}).out,
              HasSubstr("[0.1 - 60]=1\n"));
}

TEST(SluicectlCli, AnAnswerOfAnotherVersionGivesExitStatus1) {
  ScriptedDaemon daemon;  // sends {} as its snapshot
  const ChildResult result =
      Ctl({"--socket", daemon.options().socket, "status"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("install the same version"));
}

}  // namespace
}  // namespace sluice::client
