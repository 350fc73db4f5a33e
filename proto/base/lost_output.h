// Makes a failure to write standard output a failure of the program.
#pragma once

namespace sluice {

// Makes the process end with exit status 1 if standard output cannot be written
// (a full disk, a closed pipe). A full disk is reported in one line on standard
// error, a closed pipe is not. Ignores SIGPIPE, so that a closed pipe is an
// error and does not kill the process. Call it once, before threads start.
void FailOnLostOutput();

}  // namespace sluice
