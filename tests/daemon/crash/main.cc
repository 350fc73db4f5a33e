// crashing-sluiced is sluiced, but kills itself at the points that a file
// names.
//
// $SLUICE_CRASH_PLAN names a file with lines "NAME COUNT", one for each life.
// The process dies when it reaches crash point NAME for the COUNT-th time.
// Before that, it appends "NAME RANKS", with the number of ranks, to the file
// $SLUICE_CRASH_PLAN.died, and removes its line, so that the next life uses the
// next line.
//
// Counting begins once a rank is attached or was left by the last life: a start
// passes most points without any rank, and a death there would test nothing.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "daemon/crash/crash_point.h"

int SluicedMain(int argc, char** argv);  // of daemon/main.cc

namespace sluice::daemon {
namespace {

std::string plan_path, rest_of_plan, planned_name;
std::atomic<int> left = 0;
// The number of ranks with kept sockets, until the daemon has adopted them.
std::atomic<int> ranks_left = 0;
std::atomic<bool> had_ranks = false;

bool Write(const std::string& path, int how, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | how, 0600);
  return file >= 0 && write(file, text.data(), text.size()) >= 0 &&
         close(file) == 0;
}

// Records the death, removes the plan's line, and kills the process.
[[noreturn]] void Die(int ranks) {
  const std::string beside = plan_path + ".new";
  const std::string died = planned_name + " " + std::to_string(ranks) + "\n";
  if (!Write(plan_path + ".died", O_APPEND, died) ||
      !Write(beside, O_TRUNC, rest_of_plan) ||
      rename(beside.c_str(), plan_path.c_str()) != 0) {
    std::perror("crashing-sluiced");
  }
  kill(getpid(), SIGKILL);
  while (true) pause();
}

void DieWhereItSays(std::string_view point) {
  if (point == "sessions-adopted") ranks_left = 0;
  const int ranks = std::max(crash_ranks.load(), ranks_left.load());
  if (ranks > 0) had_ranks = true;
  if (!had_ranks || point != planned_name || left.fetch_sub(1) != 1) return;
  Die(ranks);
}

// Returns the number of kept rank sockets. Each is named 's' and a number
// (Handover::SocketOf).
int RanksLeft() {
  const char* names = std::getenv("LISTEN_FDNAMES");
  std::istringstream list(names == nullptr ? "" : names);
  int ranks = 0;
  for (std::string name; std::getline(list, name, ':');) {
    ranks += name.size() > 1 && name[0] == 's' &&
             std::all_of(name.begin() + 1, name.end(),
                         [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return ranks;
}

void FollowThePlan(const char* path) {
  plan_path = path;
  ranks_left = RanksLeft();
  std::ifstream file(plan_path);
  int count = 0;
  if (!(file >> planned_name >> count)) return;
  if (std::ranges::find(kCrashPoints, planned_name) == kCrashPoints.end()) {
    std::fprintf(stderr, "error: no crash point '%s'\n", planned_name.c_str());
    std::exit(2);
  }
  left = count;
  crash_watcher = DieWhereItSays;
  file >> std::ws;
  std::getline(file, rest_of_plan, '\0');
}

void List() {
  for (const std::string_view name : kCrashPoints) std::puts(name.data());
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list-crash-points") == 0) {
    sluice::daemon::List();
    return 0;
  }
  if (const char* plan = std::getenv("SLUICE_CRASH_PLAN")) {
    sluice::daemon::FollowThePlan(plan);
  }
  return SluicedMain(argc, argv);
}
