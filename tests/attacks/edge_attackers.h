// What attackers send to the daemon's edge: descriptors that do not close,
// profiles, requests again and again, and HTTP. Each runs in a process of its
// own until it is killed.
#pragma once

#include <string>

namespace sluice::testing {

// Descriptors that take a minute to close, beside packets of new sessions.
void SendLingering(const std::string& socket);
// The same profile on `sessions` ranks of one rank each, for ever.
void SubmitProfiles(const std::string& socket, int sessions,
                    const std::string& profile);
// A hard profile that was not submitted before, on `sessions` ranks of one rank
// each, again and again.
void FloodHardProfiles(const std::string& socket, int sessions);
// One lease's request again and again, with its id, on `sessions` sessions.
void Repeat(const std::string& socket, int sessions);

// `begin`, then `piece` for as long as the daemon takes it, on `connections`
// connections one after the other, for ever.
void SendHttp(const std::string& address, const std::string& begin,
              const std::string& piece);
// A byte a time on each of `connections`.
void TrickleHttp(const std::string& address, int connections);
// Opens `connections` and says nothing; opens those anew that are closed.
void IdleHttp(const std::string& address, int connections);

// Encoded profiles of one rank on GPU 0. One that is soon solved; one that no
// solver proves; one as long as one may be; one that would be large.
std::string SmallProfile();
std::string HardProfile();
std::string LongProfile();
std::string BombProfile();
// The profile with another name of its segment, which makes it another one.
std::string Numbered(std::string profile, int number);

}  // namespace sluice::testing
