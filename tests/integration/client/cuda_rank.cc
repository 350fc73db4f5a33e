// A rank without torch, as a user may write it:
//     cuda_rank SOCKET GPU RANK UNTIL
// Once it has a context, it prints "leases may have N": the bytes of the GPU's
// pool that are not held outside leases. It leases GPU and host memory,
// copies there and back through the copy engine, prints "same" if every byte
// came back, and holds the memory until the file UNTIL exists.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "client/copy/copy_engine.h"
#include "client/session/session.h"
#include "proto/base/status.h"

namespace sluice::client {
namespace {

constexpr Bytes kSize = MiB(8);  // two extents of the test's daemon
constexpr int kRounds = 3;

std::byte Pattern(size_t at, int rank, int round) {
  return static_cast<std::byte>(at * 31 >> 3 ^ (rank * 7 + round * 13 + 1));
}

// The first copy depends on `last`, the copy back of the previous round,
// although Drain has waited for it: another thread issues a copy that waits for
// a grant, and the fake driver knows the order of host threads by CUDA's calls
// alone.
absl::Status CopyThereAndBack(CopyEngine& engine, Region& gpu, Region& host,
                              int rank, int round, Ticket& last) {
  std::byte* const out = host.data();
  std::byte* const back = out + kSize.size();
  for (size_t i = 0; i < kSize.size(); ++i) out[i] = Pattern(i, rank, round);
  std::fill_n(back, kSize.size(), std::byte{0});
  const Ticket there =
      engine.Enqueue({.direction = device::CopyDirection::kHostToDevice,
                      .pieces = {{gpu.data(), out, kSize}},
                      .after = {last}});
  last = engine.Enqueue({.direction = device::CopyDirection::kDeviceToHost,
                         .pieces = {{back, gpu.data(), kSize}},
                         .after = {there}});
  SLUICE_RETURN_IF_ERROR(engine.Drain());  // the CPU reads next
  for (size_t i = 0; i < kSize.size(); ++i) {
    if (back[i] != Pattern(i, rank, round)) {
      return absl::DataLossError("byte " + std::to_string(i) + " of round " +
                                 std::to_string(round) + " differs");
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& socket, int gpu_index, int rank,
                 const std::string& until) {
  SLUICE_ASSIGN_OR_RETURN(const auto session,
                          Session::Open({.socket = socket,
                                         .job = "copies",
                                         .rank = Rank(rank),
                                         .world_size = 2,
                                         .local_ranks = 2,
                                         .gpu = DeviceIndex(gpu_index)}));
  std::printf("leases may have %lld\n",
              static_cast<long long>(session->limits().gpu_total.count()));
  SLUICE_ASSIGN_OR_RETURN(const auto gpu, session->LeaseGpu(kSize));
  SLUICE_ASSIGN_OR_RETURN(const auto host, session->LeaseHost(2 * kSize));
  SLUICE_ASSIGN_OR_RETURN(const auto engine,
                          CopyEngine::Start({.driver = &session->driver(),
                                             .device = session->limits().device,
                                             .gate = &session->grants()}));
  Ticket last;
  for (int round = 0; round < kRounds; ++round) {
    SLUICE_RETURN_IF_ERROR(
        CopyThereAndBack(*engine, *gpu, *host, rank, round, last));
  }
  std::printf("same\n");
  std::fflush(stdout);
  while (access(until.c_str(), F_OK) != 0) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  return CopyThereAndBack(*engine, *gpu, *host, rank, kRounds, last);
}

}  // namespace
}  // namespace sluice::client

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const absl::Status status = sluice::client::Run(argv[1], std::atoi(argv[2]),
                                                  std::atoi(argv[3]), argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}
