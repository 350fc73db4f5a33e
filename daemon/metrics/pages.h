// The pages that are served over HTTP, for each audience.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/core/snapshot.h"
#include "daemon/metrics/prometheus_text.h"

namespace sluice::daemon {

using HttpStatus = std::string_view;
inline constexpr HttpStatus kHttpOk = "200 OK",
                            kHttpBadRequest = "400 Bad Request",
                            kHttpNotFound = "404 Not Found",
                            kHttpNotAllowed = "405 Method Not Allowed",
                            kHttpTimeout = "408 Request Timeout",
                            kHttpTooLarge =
                                "431 Request Header Fields Too Large",
                            kHttpUnavailable = "503 Service Unavailable";

struct Page {
  HttpStatus status;
  std::string body;
  std::string_view type = "text/plain; charset=utf-8";
};

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

// Makes pages from one snapshot.
class PageMaker {
 public:
  // `sources` is null while the daemon starts: then the status page has no
  // data, and the other pages are 503.
  explicit PageMaker(std::shared_ptr<const PageSources> sources);

  Page Make(const std::string& path, Audience audience);

 private:
  const std::shared_ptr<const PageSources> sources_;
  const absl::Status alive_;
  std::optional<absl::StatusOr<Snapshot>> snapshot_;  // unset: not needed yet
};

// The status page: one self-contained HTML document that asks /status.json
// every two seconds.
std::string_view StatusPage();

}  // namespace sluice::daemon
