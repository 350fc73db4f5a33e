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

// The living descendants of process `of`, the nearest first.
std::vector<pid_t> Descendants(pid_t of);

// Kills all descendants and reaps them. Gives up on a process that does not die
// within some seconds, such as one inside a driver call.
void EndDescendants();

// Describes waitpid's status: "ended by signal 9 (Killed)", "ended with status
// 1"; empty if it ended with 0.
std::string HowItEnded(int status);

}  // namespace sluice::verify
