#include "daemon/service/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sluice::daemon {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "?";
}

}  // namespace

void SetLogLevel(LogLevel level) { current_level = level; }

void WriteLog(LogLevel level, std::string_view text) {
  if (level > current_level.load(std::memory_order_relaxed)) return;
  const std::string line =
      fmt::format("{} {} {}\n",
                  absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(),
                                   absl::UTCTimeZone()),
                  NameOf(level), text);
  // A full pipe or a closed stderr must not stop the daemon.
  [[maybe_unused]] const ssize_t wrote =
      write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace sluice::daemon
