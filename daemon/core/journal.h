// The daemon's events and counters, for people. All parts of policy share one
// journal.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "daemon/core/event_log.h"
#include "daemon/core/stats.h"

namespace sluice::daemon {

struct Journal {
  EventLog log;
  Stats stats;

  void Log(absl::Time now, EventKind kind, std::string text,
           const Principal& whose, Cause cause = {}) {
    log.Add(now, kind, std::move(text), whose, cause);
  }
};

}  // namespace sluice::daemon
