#pragma once

namespace sluice {

// Makes the process end with exit status 1 if standard output could not be
// written: silently if its pipe is closed (SIGPIPE is ignored), else with a
// line on standard error. Call it once, before threads start.
void FailOnLostOutput();

}  // namespace sluice
