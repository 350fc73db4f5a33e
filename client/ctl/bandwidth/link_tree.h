// A node's links as its daemon describes them, the measurement of each, and
// which measurements are worth keeping.
//
// A link with several links below it is measured by all GPUs below it at once.
// It is a limit if it carries less than the sum of those links.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::ctl {

// Bytes per second.
struct MeasuredSpeeds {
  double h2d = 0;  // while nothing goes the other way
  double d2h = 0;
  double both_h2d = 0;  // while both directions are busy
  double both_d2h = 0;
};

// The limits that the daemon uses, in bytes per second; 0: no limit.
struct LinkLimits {
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // of both directions together
  bool any() const { return h2d > 0 || d2h > 0 || both > 0; }
};

struct MeasurableLink {
  std::string name;
  std::optional<size_t> parent;  // index in the same list
  std::vector<size_t> gpus;      // those that copy over it
  // False if all its GPUs are also behind one link below, because that link's
  // measurement would be the same.
  bool measurable = false;
  std::optional<MeasuredSpeeds> measured;
  LinkLimits set;        // before measuring
  std::string set_from;  // "configuration", "measured"; empty: not set
};

struct MeasurableNode {
  std::string driver;
  std::vector<std::string> gpu_links;  // by GPU
  std::vector<int64_t> gpu_free;       // bytes
  std::vector<MeasurableLink> links;
  std::vector<std::string> jobs;   // those with ranks here
  std::set<std::string> attached;  // those of them with an open session
  bool keeps = false;              // the daemon can keep measurements
};

// Reads a snapshot (daemon/README.md). InvalidArgument: it has no links, which
// means an older daemon.
absl::StatusOr<MeasurableNode> ReadLinks(const std::string& snapshot);

// Returns the measured limits by link, which are worth keeping.
std::map<std::string, LinkLimits> LimitsOf(const MeasurableNode& node);
// Formats the limits as TOML for the daemon's configuration.
std::string ConfigurationOf(const MeasurableNode& node);

// A table of measured and configured speeds.
std::string RenderMeasured(const MeasurableNode& node);
// One line of JSON. `kept` says whether the daemon uses the speeds; nullopt if
// it was not asked to.
std::string MeasuredJson(const MeasurableNode& node, double seconds,
                         std::optional<bool> kept = std::nullopt);

}  // namespace sluice::ctl
