// Lines of the keeper on its standard error.
//
// Whoever reads them may be slow, or gone; the keeper holds the node's
// descriptors, so neither may end it or hold it up.
//
// Thread safety: safe.
#pragma once

#include <string>

namespace sluice::daemon {

// Never waits and never fails: a line that finds no reader, or no room, is
// lost. SIGPIPE must be ignored.
void Say(const std::string& text);

// The same in a process that was forked and has lined up its descriptors, who
// may have no other than the standard ones. It may wait for a pipe that another
// process fills at that moment.
void SayFromFork(const std::string& text);

}  // namespace sluice::daemon
