// The pages that are served over HTTP, for each audience. Each page is a pure
// function of a snapshot.
//
// Thread safety: pure, but MakePages calls its sources.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/core/snapshot.h"
#include "daemon/metrics/http_request.h"
#include "daemon/metrics/prometheus_text.h"

namespace sluice::daemon {

enum class PageName { kHealth, kReady, kMetrics, kStatusJson, kStatusPage };

// Finds the page of a path such as "/metrics"; nullopt if there is none.
std::optional<PageName> FindPage(std::string_view path);
std::string PagePaths();  // shown for an unknown path

// An answer (HttpAnswer) of one line, as text.
std::string LinePage(HttpStatus status, std::string_view line);

// The sources of pages. Both may wait for the daemon's loop, a second at most.
struct PageSources {
  // The whole snapshot; Unavailable: the loop does not answer.
  std::function<absl::StatusOr<Snapshot>()> snapshot;
  // Ok if the loop answers.
  std::function<absl::Status()> alive;
  // The reason why the daemon is frozen (daemon/frozen), in one line; empty: it
  // serves. A frozen daemon has no snapshot.
  std::string frozen;
};

using PageKey = std::pair<PageName, Audience>;
using Pages = std::map<PageKey, std::shared_ptr<const std::string>>;

// Returns the answers with the requested pages, all of one snapshot. `sources`
// is null while the daemon starts: every page but the empty status page is then
// 503.
Pages MakePages(const std::set<PageKey>& asked, const PageSources* sources);

}  // namespace sluice::daemon
