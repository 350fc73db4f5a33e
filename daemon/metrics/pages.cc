#include "daemon/metrics/pages.h"

#include <utility>

#include "daemon/metrics/snapshot_json.h"

namespace sluice::daemon {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

Page Unavailable(const absl::Status& why) {
  return {kHttpUnavailable, std::string(why.message()) + "\n"};
}

}  // namespace

PageMaker::PageMaker(std::shared_ptr<const PageSources> sources)
    : sources_(std::move(sources)),
      alive_(sources_ ? sources_->alive()
                      : absl::UnavailableError("sluiced is starting")) {}

Page PageMaker::Make(const std::string& path, Audience audience) {
  const bool metrics = path == "/metrics", health = path == "/healthz";
  const bool needs_snapshot = metrics || path == "/status.json";
  if (path == "/") {
    return {kHttpOk, std::string(StatusPage()), "text/html; charset=utf-8"};
  }
  if (!needs_snapshot && !health && path != "/readyz") {
    return {kHttpNotFound,
            "404 Not Found: there are only /, /healthz, /metrics, /readyz, "
            "/status.json\n"};
  }
  if (!alive_.ok()) return Unavailable(alive_);
  if (const std::string& frozen = sources_->frozen; !frozen.empty()) {
    if (metrics) return {kHttpOk, FrozenText(ReadProcessStats()), kMetricsType};
    // A frozen daemon counts as healthy, so that it is not restarted.
    return {health ? kHttpOk : kHttpUnavailable, "frozen: " + frozen + "\n"};
  }
  if (!needs_snapshot) return {kHttpOk, "ok\n"};
  if (!snapshot_) snapshot_ = sources_->snapshot();
  if (!snapshot_->ok()) return Unavailable(snapshot_->status());
  const Snapshot& now = **snapshot_;
  if (metrics) {
    return {kHttpOk, PrometheusText(now, ReadProcessStats(), audience),
            kMetricsType};
  }
  return {kHttpOk,
          audience == Audience::kOperators ? SnapshotJson(now)
                                           : AggregatesJson(now),
          "application/json"};
}

}  // namespace sluice::daemon
