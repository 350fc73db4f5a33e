// A rank that leases much host memory:
//     cuda_leases SOCKET JOB RANK RANKS MIB UID GO UNTIL
// It opens its session as user UID, which it must be allowed to become, and
// prints "open". Once the file GO exists, it leases MIB mebibytes, prints
// "leased in N ms", and holds the memory until the file UNTIL exists. It gives
// up if the daemon sends nothing for 2 s.
#include <sys/fsuid.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "proto/base/status.h"

namespace sluice::client {
namespace {

void Await(const char* file) {
  while (access(file, F_OK) != 0) absl::SleepFor(absl::Milliseconds(1));
}

absl::Status Run(char** words) {
  const SessionOptions options = {
      .socket = words[1],
      .job = words[2],
      .rank = Rank(std::strtoull(words[3], nullptr, 10)),
      .world_size = std::atoi(words[4]),
      .local_ranks = std::atoi(words[4]),
      .answer_timeout = absl::Seconds(2)};
  // The kernel tells the daemon the process's user at the time of connect. The
  // fake driver's files belong to this process's own user.
  if (seteuid(static_cast<uid_t>(std::atoi(words[6]))) != 0) {
    return ErrnoStatus(errno, "become another user");
  }
  setfsuid(getuid());
  SLUICE_ASSIGN_OR_RETURN(const auto session, Session::Open(options));
  if (seteuid(getuid()) != 0) return ErrnoStatus(errno, "become oneself again");
  std::puts("open");
  std::fflush(stdout);
  Await(words[7]);
  const absl::Time start = absl::Now();
  SLUICE_ASSIGN_OR_RETURN(const auto region,
                          session->LeaseHost(MiB(std::atoi(words[5]))));
  std::printf(
      "leased in %lld ms\n",
      static_cast<long long>(absl::ToInt64Milliseconds(absl::Now() - start)));
  std::fflush(stdout);
  Await(words[8]);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice::client

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  const absl::Status status = sluice::client::Run(argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}
