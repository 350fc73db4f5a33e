// Writes the keeper's lines to standard error.
//
// A slow or missing reader of these lines must neither end nor delay the
// keeper, which keeps the node's descriptors.
//
// Thread safety: safe.
#pragma once

#include <string>

namespace sluice::daemon {

// Never waits and never fails: a line without a reader or room is lost. SIGPIPE
// must be ignored.
void Say(const std::string& text);

// Does the same in a forked process that has only the standard descriptors. May
// wait if another process is filling the pipe at that moment.
void SayFromFork(const std::string& text);

}  // namespace sluice::daemon
