// The daemon's log: one line an event on stderr, which journald keeps.
//
// Thread safety: safe; a line is one write.
#pragma once

#include <string_view>

namespace sluice::daemon {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

void SetLogLevel(LogLevel level);
void WriteLog(LogLevel level, std::string_view text);

}  // namespace sluice::daemon
