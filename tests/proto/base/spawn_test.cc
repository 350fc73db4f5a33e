#include "proto/base/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/unique_fd.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// Runs a program and returns its standard output.
std::string OutputOf(const std::vector<std::string>& words,
                     SpawnOptions options) {
  const UniqueFd out(memfd_create("out", MFD_CLOEXEC));
  options.files.emplace_back(out.get(), STDOUT_FILENO);
  const auto pid = Spawn(words, options);
  if (!pid.ok()) return std::string(pid.status().message());
  int status = 0;
  EXPECT_EQ(waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(status, 0);
  std::string text(4096, '\0');
  const ssize_t size = pread(out.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(size));
  return text;
}
std::string Said(const std::string& script, const SpawnOptions& options = {}) {
  return OutputOf({"/bin/sh", "-c", script}, options);
}

// Returns the signal mask in `line` ("SigBlk", "SigIgn") of the child's
// /proc/PID/status, without signals after SIGSYS, which glibc uses itself.
uint64_t SignalsOf(const std::string& line, const SpawnOptions& options = {}) {
  const std::string text =
      OutputOf({"/bin/grep", line, "/proc/self/status"}, options);
  return std::stoull(text.substr(line.size() + 1), nullptr, 16) & 0x7fffffff;
}
uint64_t Bit(int signal) { return uint64_t{1} << (signal - 1); }

TEST(Spawn, OnlyRequestedSignalsAreBlocked) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  EXPECT_EQ(SignalsOf("SigBlk"), 0u);
  EXPECT_EQ(SignalsOf("SigBlk", {.blocked = {SIGUSR1}}), Bit(SIGUSR1));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Spawn, IgnoredSignalsAreInheritedByDefault) {
  const auto pipe = signal(SIGPIPE, SIG_IGN), usr2 = signal(SIGUSR2, SIG_IGN);
  using Signals = SpawnOptions::Signals;
  const uint64_t here = SignalsOf("SigIgn");
  EXPECT_EQ(here & Bit(SIGPIPE), Bit(SIGPIPE));
  EXPECT_EQ(here & Bit(SIGUSR2), Bit(SIGUSR2));
  EXPECT_EQ(SignalsOf("SigIgn", {.signals = Signals::kDefaultPipe}),
            here & ~Bit(SIGPIPE));
  EXPECT_EQ(SignalsOf("SigIgn", {.signals = Signals::kDefault}), 0u);
  signal(SIGPIPE, pipe);
  signal(SIGUSR2, usr2);
}

TEST(Spawn, AGivenEnvironmentReplacesTheInheritedOne) {
  EXPECT_EQ(Said("echo $A$HOME", {.environment = {"A=1"}}), "1\n");
}

TEST(Spawn, ADescriptorThatKeepsItsNumberStaysOpen) {
  const UniqueFd kept(memfd_create("kept", MFD_CLOEXEC));
  const std::string script = "readlink /proc/self/fd/" +
                             std::to_string(kept.get()) + " || echo closed";
  EXPECT_THAT(Said(script), HasSubstr("closed"));
  EXPECT_THAT(Said(script, {.files = {{kept.get(), kept.get()}}}),
              HasSubstr("kept"));
}

TEST(Spawn, AProgramIsFoundInPathAndGetsItsOwnGroup) {
  const auto pid =
      Spawn({"sleep", "60"}, {.own_group = true, .search_path = true});
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_EQ(getpgid(*pid), *pid);
  kill(*pid, SIGKILL);
  waitpid(*pid, nullptr, 0);
}

TEST(Spawn, AProgramThatCannotBeStartedIsNamed) {
  const auto pid = Spawn({"/no/such"}, {});
  EXPECT_TRUE(absl::IsNotFound(pid.status()));
  EXPECT_THAT(std::string(pid.status().message()), HasSubstr("start /no/such"));
  EXPECT_THAT(
      std::string(Spawn({"/no/such"}, {.name = "it"}).status().message()),
      HasSubstr("start it"));
}

}  // namespace
}  // namespace sluice
