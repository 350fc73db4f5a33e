#pragma once

namespace sluice {

// Makes the process end with exit status 1 if standard output cannot be
// written: with a line on standard error if its disk is full, silently if its
// pipe is closed (SIGPIPE is ignored). Call it once, before threads start.
void FailOnLostOutput();

}  // namespace sluice
