// Attacks with descriptors that take long to close, profiles, repeated
// requests, and HTTP. Each runs in a process of its own until it is killed.
#pragma once

#include <string>

namespace sluice::testing {

// Sends descriptors that take a minute to close, for ever, each on a new
// session.
void SendLingering(const std::string& socket);
// Submits `profile` on `sessions` ranks, each of a job of one rank, for ever.
void SubmitProfiles(const std::string& socket, int sessions,
                    const std::string& profile);
// Submits a new variant of HardProfile on each of `sessions` ranks, for ever.
void FloodHardProfiles(const std::string& socket, int sessions);
// Repeats one lease request with the same id on `sessions` sessions, for ever.
void Repeat(const std::string& socket, int sessions);

// Sends `begin`, then `piece` for as long as the daemon reads, on one
// connection after the other, for ever.
void SendHttp(const std::string& address, const std::string& begin,
              const std::string& piece);
// Sends one byte at a time on each of `connections` connections.
void TrickleHttp(const std::string& address, int connections);
// Opens `connections` connections and sends nothing; replaces those that the
// daemon closes.
void IdleHttp(const std::string& address, int connections);

// Return encoded profiles of one rank on GPU 0.
std::string SmallProfile();  // is solved quickly
std::string HardProfile();   // no solver proves its plan optimal
std::string LongProfile();   // has 100,000 buffers
// Returns 4 MiB of JSON that take much more memory when parsed.
std::string BombProfile();
// Returns a different profile: `profile` with `number` in its segment's name.
std::string Numbered(std::string profile, int number);

}  // namespace sluice::testing
