#include "daemon/metrics/pages.h"

#include <array>

#include "daemon/metrics/snapshot_json.h"

namespace sluice::daemon {
namespace {

struct Place {
  std::string_view path;
  PageName name;
};
constexpr std::array kPlaces = {
    Place{"/", PageName::kStatusPage}, Place{"/healthz", PageName::kHealth},
    Place{"/metrics", PageName::kMetrics}, Place{"/readyz", PageName::kReady},
    Place{"/status.json", PageName::kStatusJson}};

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

bool NeedsSnapshot(PageName name) {
  return name == PageName::kMetrics || name == PageName::kStatusJson;
}

std::string Render(PageKey key, const Snapshot& snapshot) {
  const auto& [name, audience] = key;
  if (name == PageName::kMetrics) {
    return HttpAnswer(kHttpOk, kMetricsType,
                      PrometheusText(snapshot, ReadProcessStats(), audience));
  }
  return HttpAnswer(kHttpOk, "application/json",
                    audience == Audience::kOperators
                        ? SnapshotJson(snapshot)
                        : AggregatesJson(snapshot));
}

std::string Unavailable(const absl::Status& why) {
  return LinePage(kHttpUnavailable, std::string(why.message()));
}

// Returns a frozen daemon's page. Such a daemon is healthy, so that it is not
// restarted, but not ready.
std::string FrozenPage(PageName name, const std::string& why) {
  if (name == PageName::kMetrics) {
    return HttpAnswer(kHttpOk, kMetricsType, FrozenText(ReadProcessStats()));
  }
  return LinePage(name == PageName::kHealth ? kHttpOk : kHttpUnavailable,
                  "frozen: " + why);
}

}  // namespace

std::optional<PageName> FindPage(std::string_view path) {
  for (const Place& place : kPlaces) {
    if (place.path == path) return place.name;
  }
  return std::nullopt;
}

std::string PagePaths() {
  std::string paths;
  for (const Place& place : kPlaces) {
    paths += (paths.empty() ? "" : ", ") + std::string(place.path);
  }
  return paths;
}

std::string LinePage(HttpStatus status, std::string_view line) {
  return HttpAnswer(status, "text/plain; charset=utf-8",
                    std::string(line) + "\n");
}

Pages MakePages(const std::set<PageKey>& asked, const PageSources* sources) {
  absl::Status alive = absl::UnavailableError("sluiced is starting");
  if (sources != nullptr) alive = sources->alive();
  std::optional<absl::StatusOr<Snapshot>> snapshot;  // taken once for all pages
  const auto make = [&](PageKey key) -> std::string {
    if (key.first == PageName::kStatusPage) {
      return HttpAnswer(kHttpOk, "text/html; charset=utf-8", StatusPage());
    }
    if (!alive.ok()) return Unavailable(alive);
    if (!sources->frozen.empty()) {
      return FrozenPage(key.first, sources->frozen);
    }
    if (!NeedsSnapshot(key.first)) return LinePage(kHttpOk, "ok");
    if (!snapshot) snapshot = sources->snapshot();
    if (!snapshot->ok()) return Unavailable(snapshot->status());
    return Render(key, **snapshot);
  };
  Pages pages;
  for (const PageKey& key : asked) {
    pages[key] = std::make_shared<const std::string>(make(key));
  }
  return pages;
}

}  // namespace sluice::daemon
