// A node's links as its daemon tells them, what was measured of each, and what
// is worth keeping of that.
//
// A link that several others hang on is measured by all GPUs behind it at once.
// It limits something where it carries less than the sum of those others.
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
  double both_h2d = 0;  // while as much as can goes both ways
  double both_d2h = 0;
};

// What the daemon goes by; bytes per second, 0: no limit.
struct LinkLimits {
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // of both directions together
  bool any() const { return h2d > 0 || d2h > 0 || both > 0; }
};

struct MeasurableLink {
  std::string name;
  std::optional<size_t> parent;  // an index into the same list
  std::vector<size_t> gpus;      // that copy over it
  // Whether its GPUs are not all those of one link below it, of which the same
  // would be measured.
  bool measurable = false;
  std::optional<MeasuredSpeeds> measured;
  LinkLimits set;        // before
  std::string set_from;  // "configuration", "measured"; empty: nothing is
};

struct MeasurableNode {
  std::string driver;
  std::vector<std::string> gpu_links;  // by GPU
  std::vector<int64_t> gpu_free;       // bytes
  std::vector<MeasurableLink> links;
  std::vector<std::string> jobs;   // that have ranks here
  std::set<std::string> attached;  // of these, jobs with an open session
  bool keeps = false;  // whether its daemon would keep what was measured
};

// Reads a snapshot (daemon/README.md). InvalidArgument: it has no links, as an
// older daemon's.
absl::StatusOr<MeasurableNode> ReadLinks(const std::string& snapshot);

// What of it limits something, by link: what is worth keeping.
std::map<std::string, LinkLimits> LimitsOf(const MeasurableNode& node);
// As TOML for the daemon's configuration: what limits something.
std::string ConfigurationOf(const MeasurableNode& node);

// What was measured beside what is set.
std::string RenderMeasured(const MeasurableNode& node);
// One line. `kept`: whether the daemon goes by it; nullopt: it was not asked
// to.
std::string MeasuredJson(const MeasurableNode& node, double seconds,
                         std::optional<bool> kept = std::nullopt);

}  // namespace sluice::ctl
