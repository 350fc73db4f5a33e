// Compares leases through the daemon with the least that any two processes must
// do to share memory (memfd_create, sendmsg, mmap). Both sides touch fresh
// memory, in turns.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::bench {
namespace {

using client::Session;
using testing::Child;
using testing::RunningDaemon;

constexpr Bytes kSize = GiB(1);
constexpr int kRounds = 15;
// Each daemon grants only a few leases, as no rank holds hundreds. The leases
// are held, so that each new lease gets fresh memory.
constexpr int kDaemons = 10;
constexpr int kLeases = 20;
constexpr absl::Duration kTimeToMakeAll = absl::Milliseconds(300);

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin_)
        .count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
};

void TouchEveryPage(std::byte* data) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t at = 0; at < kSize.count(); at += page) data[at] = std::byte{1};
}

// Returns a node's configuration with `gib` GiB of host memory, which is
// allocated only when touched. If `ahead`, the daemon makes all extents before
// any lease.
std::string Node(int gib, bool ahead) {
  return fmt::format(
      "[sim]\nhost_memory = \"{0}GiB\"\n[pools]\nhost_bytes = "
      "\"{0}GiB\"\nextent_bytes = \"64MiB\"\n{1}",
      gib, ahead ? fmt::format("host_ready_bytes = \"{}GiB\"\n", gib) : "");
}

std::unique_ptr<Session> Open(const RunningDaemon& daemon) {
  auto session = Session::Open({.socket = daemon.socket(), .job = "bench"});
  SLUICE_CHECK_OK(session.status());
  return *std::move(session);
}

double TouchedThroughDaemon() {
  // Starts a new daemon each time: an extent that a daemon kept would not be
  // fresh.
  const RunningDaemon daemon(Node(1, /*ahead=*/false));
  const auto session = Open(daemon);
  const Stopwatch watch;
  const auto region = session->LeaseHost(kSize);
  SLUICE_CHECK_OK(region.status());
  TouchEveryPage((*region)->data());
  return watch.Seconds();
}

// The other end of the bare exchange: answers each byte with a new memfd.
void ServeMemfds(int socket) {
  char request;
  while (recv(socket, &request, 1, 0) == 1) {
    const UniqueFd memory(memfd_create("bare", MFD_CLOEXEC));
    SLUICE_CHECK(ftruncate(memory.get(), kSize.count()) == 0);
    iovec data = {&request, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = memory.get();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    SLUICE_CHECK(sendmsg(socket, &header, 0) == 1);
  }
}

double TouchedBare(int socket) {
  const Stopwatch watch;
  SLUICE_CHECK(send(socket, "x", 1, 0) == 1);
  char answer;
  iovec data = {&answer, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  SLUICE_CHECK(recvmsg(socket, &header, MSG_CMSG_CLOEXEC) == 1);
  int fd;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));
  const UniqueFd memory(fd);
  void* data_address = mmap(nullptr, kSize.size(), PROT_READ | PROT_WRITE,
                            MAP_SHARED, memory.get(), 0);
  SLUICE_CHECK(data_address != MAP_FAILED);
  TouchEveryPage(static_cast<std::byte*>(data_address));
  const double seconds = watch.Seconds();
  munmap(data_address, kSize.size());
  return seconds;
}

void AddUntouched(bool ahead, std::vector<double>& micros) {
  const RunningDaemon daemon(Node(kLeases, ahead));
  if (ahead) absl::SleepFor(kTimeToMakeAll);
  const auto session = Open(daemon);
  std::vector<std::unique_ptr<client::Region>> held;
  for (int i = 0; i < kLeases; ++i) {
    const Stopwatch watch;
    auto region = session->LeaseHost(kSize);
    micros.push_back(1e6 * watch.Seconds());
    SLUICE_CHECK_OK(region.status());
    held.push_back(*std::move(region));
  }
}

Entry Untouched(const std::string& name, double target, const std::string& how,
                std::vector<double>& micros) {
  return {name,
          Quantile(micros, 0.5),
          "us",
          target,
          true,
          fmt::format("lease and map 1 GiB of fresh extents of 64 MiB, {}; p99 "
                      "{:.0f} us of {}",
                      how, Quantile(micros, 0.99), micros.size())};
}

std::vector<Entry> Measure() {
  std::array<int, 2> ends;
  SLUICE_CHECK(
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto server = Child::Fork([&] {
    ours.Reset();
    ServeMemfds(theirs.get());
  });
  theirs.Reset();
  std::vector<double> daemon, bare;
  for (int i = 0; i < Rounds(kRounds); ++i) {
    // The order alternates, so that a drift of the machine's speed favours
    // neither side.
    if (i % 2 == 0) daemon.push_back(TouchedThroughDaemon());
    bare.push_back(TouchedBare(ours.get()));
    if (i % 2 != 0) daemon.push_back(TouchedThroughDaemon());
  }
  std::vector<double> ready, untouched;
  for (int i = 0; i < kDaemons; ++i) {
    AddUntouched(/*ahead=*/true, ready);
    AddUntouched(/*ahead=*/false, untouched);
  }
  const double daemon_s = Quantile(daemon, 0.5), bare_s = Quantile(bare, 0.5);
  return {
      {"ipc touched", daemon_s / bare_s, "ratio", 1.1, true,
       fmt::format("1 GiB leased, mapped, every page written: {:.3f} s; bare "
                   "memfd: {:.3f} s (medians of {})",
                   daemon_s, bare_s, Rounds(kRounds))},
      Untouched("ipc untouched p50", 150, "made ahead", ready),
      Untouched("ipc untouched cold p50", 300, "made now", untouched),
  };
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
