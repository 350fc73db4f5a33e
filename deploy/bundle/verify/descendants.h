// Whatever this process has started, at any remove, also what left its group:
// a daemon under its keeper has one of its own.
//
// Thread safety: safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::verify {

// From now on an orphan below this process is its child.
void AdoptOrphans();

// Whether `child` has ended and was not waited for yet.
bool HasEnded(pid_t child);

// Of process `of`, those that live; the nearest first.
std::vector<pid_t> Descendants(pid_t of);

// Kills until none is left, and reaps. Gives up on who does not die within some
// seconds: a process in a driver's hands.
void EndDescendants();

// Of waitpid's status: "ended by signal 9 (Killed)", "ended with status 1";
// empty: with 0.
std::string HowItEnded(int status);

}  // namespace sluice::verify
