#include "tests/support/under_keeper.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace sluice::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr absl::Duration kLookAgain = absl::Milliseconds(2);
constexpr const char* kKeeper = "sluiced-keeper";

// Returns a file's text; empty if its process has ended.
std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns the processes of `program` with `folder` in their arguments. A dead
// process has no command line, so it is not found.
std::vector<pid_t> Running(const std::string& program,
                           const std::string& folder) {
  std::vector<pid_t> found;
  std::error_code error;  // processes may end at any time
  for (std::filesystem::directory_iterator entry("/proc", error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!std::ranges::all_of(name, [](char c) { return isdigit(c) != 0; })) {
      continue;
    }
    const std::string words = TextOf(entry->path() / "cmdline");
    const std::string first = words.substr(0, words.find('\0'));
    if (std::filesystem::path(first).filename() == program &&
        words.find(folder) != words.npos) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

// Returns whether the socket at `path` is not only bound but listens. Does not
// connect to find out, because a daemon counts its peers.
bool IsListening(const std::string& path) {
  constexpr unsigned long kAccepts = 0x10000;  // SO_ACCEPTCON, proc(5)
  std::istringstream sockets(TextOf("/proc/net/unix"));
  for (std::string line; std::getline(sockets, line);) {
    if (!line.ends_with(" " + path)) continue;
    std::istringstream fields(line);
    std::string number, references, protocol, flags;
    fields >> number >> references >> protocol >> flags;
    if ((std::stoul(flags, nullptr, 16) & kAccepts) != 0) return true;
  }
  return false;
}

}  // namespace

// Starts the keeper by a shell that appends standard error to a file.
UnderKeeper::UnderKeeper(const Of& of) : of_(of) {
  std::vector<std::string> argv = {"/bin/sh",
                                   "-c",
                                   "exec \"$0\" \"$@\" 2>>" + log_.File("log"),
                                   BinaryPath(kKeeper),
                                   "--runtime-dir",
                                   folder_.path(),
                                   "--program",
                                   BinaryPath(of.program),
                                   "--"};
  argv.insert(argv.end(), of.more.begin(), of.more.end());
  first_ = Child::Spawn(argv);
  const absl::Time late = absl::Now() + kPatience;
  while (!IsListening(socket()) && absl::Now() < late) {
    absl::SleepFor(kLookAgain);
  }
  if (!IsListening(socket())) ADD_FAILURE() << Log();
}

UnderKeeper::~UnderKeeper() {
  if (!End()) ADD_FAILURE() << "a process still runs: " << Log();
}

pid_t UnderKeeper::Wait(const std::string& program, pid_t other_than) const {
  for (const absl::Time late = absl::Now() + kPatience; absl::Now() < late;) {
    const auto running = Running(program, folder_.path());
    if (running.size() == 1 && running[0] != other_than) return running[0];
    absl::SleepFor(kLookAgain);
  }
  ADD_FAILURE() << "no " << program << " runs: " << Log();
  return 0;
}

pid_t UnderKeeper::keeper(pid_t other_than) const {
  return Wait(kKeeper, other_than);
}

pid_t UnderKeeper::daemon(pid_t other_than) const {
  return Wait(of_.program, other_than);
}

pid_t UnderKeeper::KillKeeper() const {
  const pid_t pid = keeper();
  if (pid != 0) kill(pid, SIGKILL);
  return pid;
}

pid_t UnderKeeper::KillDaemon() const {
  const pid_t pid = daemon();
  if (pid != 0) kill(pid, SIGKILL);
  return pid;
}

std::string UnderKeeper::Log() const { return TextOf(log_.File("log")); }

bool UnderKeeper::WaitForLog(const std::string& text, int times) const {
  const auto said = [&] {
    const std::string log = Log();
    int count = 0;
    for (size_t at = 0; (at = log.find(text, at)) != log.npos; ++at) ++count;
    return count >= times;
  };
  const absl::Time late = absl::Now() + kPatience;
  while (!said() && absl::Now() < late) absl::SleepFor(kLookAgain);
  return said();
}

bool UnderKeeper::HoldsFiles() const {
  return !std::filesystem::is_empty(folder_.path());
}

bool UnderKeeper::End() {
  const absl::Time late = absl::Now() + kPatience;
  const auto left = [&] {
    auto all = Running(kKeeper, folder_.path());
    const auto daemons = Running(of_.program, folder_.path());
    all.insert(all.end(), daemons.begin(), daemons.end());
    return all;
  };
  while (!left().empty() && absl::Now() < late) {
    // A daemon without a keeper gets the signal itself.
    const bool kept = !Running(kKeeper, folder_.path()).empty();
    for (const pid_t pid :
         Running(kept ? kKeeper : of_.program, folder_.path())) {
      kill(pid, SIGTERM);
    }
    absl::SleepFor(10 * kLookAgain);
  }
  const auto stuck = left();
  for (const pid_t pid : stuck) kill(pid, SIGKILL);
  return stuck.empty();
}

}  // namespace sluice::testing
