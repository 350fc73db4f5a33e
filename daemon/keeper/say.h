// Writes the keeper's lines to standard error.
//
// The reader of these lines may be slow or gone. The keeper holds the node's
// descriptors, so neither may end it or delay it.
//
// Thread safety: safe.
#pragma once

#include <string>

namespace sluice::daemon {

// Never waits and never fails: a line without a reader or room is lost. SIGPIPE
// must be ignored.
void Say(const std::string& text);

// The same in a forked process that has moved its descriptors and may have only
// the standard ones. It may wait for a pipe that another process fills at that
// moment.
void SayFromFork(const std::string& text);

}  // namespace sluice::daemon
