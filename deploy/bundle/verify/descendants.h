// Finds and ends all descendants of this process, also those that have left its
// process group (a daemon under a keeper).
// Thread safety: safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::verify {

// Makes this process the parent of descendants that become orphans from now on.
void AdoptOrphans();

// Returns whether `child` has ended but has not been reaped.
bool HasEnded(pid_t child);

// Returns the living ones, children before grandchildren.
std::vector<pid_t> Descendants(pid_t of);

// Kills and reaps all. Gives up on a process that does not die within some
// seconds, such as one inside a driver call.
void EndDescendants();

// Describes waitpid's status: "ended by signal 9 (Killed)"; empty for 0.
std::string HowItEnded(int status);

}  // namespace sluice::verify
