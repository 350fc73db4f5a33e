// crashing-sluiced: sluiced, killed where a file says.
//
// $SLUICE_CRASH_PLAN names a file with lines "NAME COUNT", one for each life:
// the process dies when it comes by that crash point for the COUNT-th time. Its
// line is gone then, so that the next life has the next one.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "daemon/crash/crash_point.h"

int SluicedMain(int argc, char** argv);  // daemon/main.cc's

namespace sluice::daemon {
namespace {

std::string plan_path, rest_of_plan;
CrashPoint planned;
std::atomic<int> left = 0;

// Nothing else of the process runs any more once the line is gone.
void DieWhereItSays(CrashPoint point) {
  if (point != planned || left.fetch_sub(1) != 1) return;
  const std::string beside = plan_path + ".new";
  const int file = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (write(file, rest_of_plan.data(), rest_of_plan.size()) < 0 ||
      rename(beside.c_str(), plan_path.c_str()) != 0) {
    std::perror("crashing-sluiced");
  }
  kill(getpid(), SIGKILL);
  while (true) pause();
}

void FollowThePlan(const char* path) {
  plan_path = path;
  std::ifstream file(plan_path);
  std::string name;
  int count = 0;
  if (!(file >> name >> count)) return;
  for (const NamedCrashPoint& each : kCrashPoints) {
    if (name != each.name) continue;
    planned = each.point;
    left = count;
    crash_watcher = DieWhereItSays;
  }
  if (crash_watcher == nullptr) {
    std::fprintf(stderr, "error: no crash point '%s'\n", name.c_str());
    std::exit(2);
  }
  file >> std::ws;
  std::getline(file, rest_of_plan, '\0');
}

void List() {
  for (const NamedCrashPoint& each : kCrashPoints) std::puts(each.name);
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
