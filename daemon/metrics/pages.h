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

// The status page: one self-contained HTML document that asks /status.json
// every two seconds.
std::string_view StatusPage();

enum class PageName { kHealth, kReady, kMetrics, kStatusJson, kStatusPage };

// Returns the page with a path such as "/metrics"; nullopt if there is none.
std::optional<PageName> FindPage(std::string_view path);
std::string PagePaths();  // lists all paths, for the answer to an unknown path

std::string LinePage(HttpStatus status, std::string_view line);

// What pages are made from. Both functions may wait for the daemon's loop, at
// most a second each.
struct PageSources {
  // Returns the complete snapshot. Unavailable: the loop does not answer.
  std::function<absl::StatusOr<Snapshot>()> snapshot;
  std::function<absl::Status()> alive;
  // Why the daemon is frozen (daemon/frozen), in one line; empty: it is not. A
  // frozen daemon has no snapshot.
  std::string frozen;
};

using PageKey = std::pair<PageName, Audience>;
using Pages = std::map<PageKey, std::shared_ptr<const std::string>>;

// Returns the answers with the requested pages, all made from one snapshot.
// `sources` is null while the daemon starts: then the status page has no data,
// and every other page is 503.
Pages MakePages(const std::set<PageKey>& asked, const PageSources* sources);

}  // namespace sluice::daemon
