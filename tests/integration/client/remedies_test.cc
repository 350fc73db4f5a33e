// Tests that the command in a refusal works as printed, and that the refused
// request then succeeds.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "tests/integration/client/of_daemon.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::ChildResult;
using ::sluice::testing::IsOk;
using ::sluice::testing::OpenSession;
using ::sluice::testing::RunningDaemon;
using ::sluice::testing::RunWithSocketOf;
using ::testing::HasSubstr;

// Returns the first command in a message. A command ends before " lists", at a
// closing bracket, or at the message's end.
std::string CommandIn(const std::string& message) {
  static const std::regex kCommand(
      R"(sluice(ctl|-train|d)( (-[a-z-]+|[a-z]+))*?( lists|\)|$))");
  std::smatch found;
  // Sizes and names do not match kCommand, but this command ends its message.
  const size_t set = message.find("sluicectl budget set ");
  if (set != message.npos && message.find("--help", set) == message.npos) {
    return message.substr(set);
  }
  if (!std::regex_search(message, found, kCommand)) return "";
  return message.substr(found.position(), found.length() - found.str(4).size());
}

// Runs a command in a shell, as an operator would paste it.
ChildResult RunAsPrinted(const RunningDaemon& daemon,
                         const std::string& command) {
  const std::string folder =
      std::filesystem::path(BinaryPath("sluicectl")).parent_path();
  return RunWithSocketOf(
      daemon, {"/bin/sh", "-c", "PATH=" + folder + ":$PATH; " + command});
}

// Expects that a lease is refused for reason `why`, and granted after the
// refusal's command has run. The lease may first be refused for another limit.
void ExpectRemedied(const RunningDaemon& daemon, Session& session, bool host,
                    const std::string& why) {
  const Bytes size = MiB(6) + KiB(64);
  const auto lease = [&] {
    return host ? session.LeaseHost(size).status()
                : session.LeaseGpu(size).status();
  };
  absl::Status refused = lease();
  ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  for (int i = 0; i < 2 && !refused.ok(); ++i) {
    const std::string command = CommandIn(std::string(refused.message()));
    ASSERT_NE(command, "") << refused;
    const ChildResult ran = RunAsPrinted(daemon, command);
    ASSERT_EQ(ran.exit_code, 0) << command << "\n" << ran.err;
    refused = lease();
  }
  EXPECT_THAT(refused, IsOk());
}

TEST(Remedies, ThePrintedCommandRaisesAJobsOrAUsersLimit) {
  for (const bool host : {false, true}) {
    for (const char* toml :
         {"job_gpu_bytes = \"4MiB\"\njob_host_bytes = \"4MiB\"\n",
          "principal_gpu_bytes = \"4MiB\"\nprincipal_host_bytes = \"4MiB\"\n",
          "[[budgets.job]]\nname = \"tune\"\ngpu_bytes = \"4MB\"\nhost_bytes = "
          "\"4MB\"\n"}) {
      RunningDaemon daemon(std::string("[budgets]\n") + toml);
      const auto session = OpenSession(daemon, "tune");
      ExpectRemedied(daemon, *session, host, "of its limit of");
    }
  }
}

TEST(Remedies, AJobsNameIsQuotedForTheShell) {
  RunningDaemon daemon("[budgets]\njob_gpu_bytes = \"4MiB\"\n");
  const auto session = OpenSession(daemon, "o'brien;$(exit${IFS}1)&");
  ExpectRemedied(daemon, *session, false, "o'brien");
}

TEST(Remedies, ThePrintedCommandRaisesACgroupsLimit) {
  RunningDaemon daemon("[quota]\ncgroups = [\"/\"]\n");
  const auto session = OpenSession(daemon, "tune");
  const ChildResult json = RunAsPrinted(daemon, "sluicectl jobs --json");
  std::smatch cgroup;
  ASSERT_TRUE(std::regex_search(json.out, cgroup,
                                std::regex(R"re("cgroup":"([^"]+)")re")));
  const ChildResult set = RunAsPrinted(
      daemon, fmt::format("sluicectl budget set --user {} --cgroup '{}' --gpu "
                          "4MiB",
                          geteuid(), cgroup.str(1)));
  ASSERT_EQ(set.exit_code, 0) << set.err;
  ExpectRemedied(daemon, *session, false, "of its limit of 4 MiB");
}

TEST(Remedies, APrintedCommandThatListsNamesWorks) {
  RunningDaemon daemon;
  for (const char* wrong :
       {"sluicectl plan show 99", "sluicectl plan show x",
        "sluicectl evict nobody", "sluicectl statsu", "sluicectl plan",
        "sluicectl plan train --seqlen 1M", "sluicectl plan swap",
        "sluicectl budget set --gpus 1GiB", "sluiced --confg x"}) {
    const ChildResult refused = RunAsPrinted(daemon, wrong);
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    std::string message = refused.err;
    message.erase(message.find_last_not_of('\n') + 1);
    const std::string command = CommandIn(message);
    if (std::string(wrong) == "sluicectl plan swap") {
      EXPECT_THAT(message, HasSubstr("--example prints one"));
      continue;
    }
    ASSERT_NE(command, "") << message;
    EXPECT_EQ(RunAsPrinted(daemon, command).exit_code, 0) << command;
  }
}

}  // namespace
}  // namespace sluice::client
