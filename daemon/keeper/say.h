// Lines of the keeper on its standard error.
//
// The reader of these lines may be slow, or gone; the keeper holds the node's
// descriptors, so neither may end it or hold it up.
//
// Thread safety: safe.
#pragma once

#include <string>

namespace sluice::daemon {

// Never waits and never fails: a line without a reader, or without room, is
// lost. SIGPIPE must be ignored.
void Say(const std::string& text);

// The same in a forked process that has lined up its descriptors and may have
// only the standard ones. It may wait for a pipe that another process fills at
// that moment.
void SayFromFork(const std::string& text);

}  // namespace sluice::daemon
