// Standard output that cannot be written is a failure of the program.
#pragma once

namespace sluice {

// From here on the process ends with exit status 1 if standard output could not
// be written (a full disk, a closed pipe). A full disk is one line on standard
// error; a reader that has gone is none. SIGPIPE is ignored, so that a closed
// pipe is such a failure and not a death. Call it once, before there are
// threads.
void FailOnLostOutput();

}  // namespace sluice
