// Attacks on sessions. Each runs in a process of its own until it is killed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::testing {

// Says Hello as a rank of `job`, or as an observer, and returns the answer.
absl::Status SayHello(const RawClient& client, const std::string& job,
                      bool rank);

// Opens up to `wanted` sessions, of ranks if `ranks`, until the daemon refuses
// one. Fails the process if the refusal is not one line that names the limit.
void TakeSessions(const std::string& socket, int wanted, bool ranks);
// Connects without a Hello, again and again, with `open` connections at a time.
void StayHalfOpen(const std::string& socket, int open);
// Sends Queries on `sessions` sessions and reads the answers, for ever.
void AskForEverything(const std::string& socket, int sessions);
// Sends a lease request `repeats` times with the same id on each of `sessions`
// sessions, and reads no answer.
void NeverRead(const std::string& socket, int sessions, int repeats);
// Requests more memory than the node has, on `sessions` sessions, for ever.
void BeRefused(const std::string& socket, int sessions);
// Leases `count` extents of the smallest size, frees them all, and stays
// attached.
void LeaveSmallExtents(const std::string& socket, int count);
// Leases and frees extents like LeaveSmallExtents, then requests each of
// `sizes` on `sessions` sessions, for ever.
void BeRefusedBesideKept(const std::string& socket, int count, int sessions,
                         const std::vector<Bytes>& sizes);
// Leases the smallest extent, requests the whole pool of GPU 0 with a wait that
// is longer than any test, and does nothing more.
void ParkLease(const std::string& socket);
// Sends packets of noise, for ever, each on a new connection.
void SendNoise(const std::string& socket);

}  // namespace sluice::testing
