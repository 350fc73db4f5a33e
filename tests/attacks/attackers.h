// What attackers do. Each runs in a process of its own until it is killed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::testing {

// The answer to a Hello as a rank of `job`, or as an observer; also one that
// was given before it was sent.
absl::Status SayHello(const RawClient& client, const std::string& job,
                      bool rank);

// As many sessions as it gets of `wanted`; rank sessions if `ranks`. Fails the
// process where a refusal is not one line that names the limit.
void TakeSessions(const std::string& socket, int wanted, bool ranks);
// Connects and says nothing, over and over, `open` at a time.
void StayHalfOpen(const std::string& socket, int open);
// Sends Queries on `sessions` sessions and reads what comes, for ever.
void AskForEverything(const std::string& socket, int sessions);
// Repeats one lease's id on `sessions` sessions, and reads none of the answers.
void NeverRead(const std::string& socket, int sessions, int repeats);
// Asks for more than there is, on `sessions` sessions, for ever.
void BeRefused(const std::string& socket, int sessions);
// Leases `count` smallest pieces, frees them all, and stays.
void LeaveSmallExtents(const std::string& socket, int count);
// The same, or as many as it gets, and asks beside them for each of `sizes` on
// `sessions` sessions, for ever.
void BeRefusedBesideKept(const std::string& socket, int count, int sessions,
                         const std::vector<Bytes>& sizes);
// Holds the smallest piece, asks for the whole pool of GPU 0 with a wait that
// is longer than any test, and does nothing more.
void ParkLease(const std::string& socket);
// Packets of noise on sessions that are ended for it, for ever.
void SendNoise(const std::string& socket);

}  // namespace sluice::testing
