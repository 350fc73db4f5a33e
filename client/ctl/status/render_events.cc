#include "client/ctl/status/render_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/ctl/text/format.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

std::string TimeOf(const json& event, absl::Time now) {
  const absl::Time at = now - absl::Seconds(event.at("age_s").get<double>());
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone());
}

// The request's id as in the daemon's log; "" from an older daemon.
std::string RequestOf(const json& event) {
  const auto request = event.find("request");
  if (request == event.end() || request->is_null()) return "";
  return " (" + request->get<std::string>() + ")";
}

std::string LineOf(const json& event, bool as_json, absl::Time now) {
  if (!as_json) {
    return fmt::format("{} {:>6} {:<8} {}{}\n", TimeOf(event, now),
                       event.at("number").get<uint64_t>(),
                       event.at("kind").get<std::string>(),
                       event.at("text").get<std::string>(), RequestOf(event));
  }
  json shown = event;
  shown.erase("age_s");
  shown["time"] = TimeOf(event, now);
  return JsonLine(shown);
}

std::string Missed(uint64_t count, bool as_json) {
  return as_json ? fmt::format("{{\"missed\": {}}}\n", count)
                 : fmt::format("({} events are not kept any more)\n", count);
}

}  // namespace

absl::StatusOr<EventLines> RenderEventLines(const std::string& snapshot,
                                            SeenEvents seen, bool as_json,
                                            absl::Time now) {
  EventLines lines;
  try {
    const json node = json::parse(snapshot);
    const auto generation = node.at("generation").get<uint64_t>();
    // No event is dropped from here on: missing numbers are other users'.
    const auto from = node.value("events_from", uint64_t{0});
    if (generation != seen.generation) seen.last = 0;
    seen.generation = generation;
    uint64_t missed =
        seen.last > 0 && from > seen.last + 1 ? from - seen.last - 1 : 0;
    for (const json& event : node.at("events")) {
      const auto number = event.at("number").get<uint64_t>();
      if (missed > 0 && number > seen.last && number < from) --missed;
    }
    if (missed > 0) lines.text += Missed(missed, as_json);
    for (const json& event : node.at("events")) {
      const auto number = event.at("number").get<uint64_t>();
      if (number <= seen.last) continue;
      lines.text += LineOf(event, as_json, now);
      seen.last = number;
    }
    // Dropped events are reported once.
    if (from > 0) seen.last = std::max(seen.last, from - 1);
    lines.seen = seen;
  } catch (const json::exception& error) {
    return absl::InternalError(
        fmt::format("sluiced's events are not what this sluicectl knows: {}",
                    error.what()));
  }
  return lines;
}

}  // namespace sluice::ctl
