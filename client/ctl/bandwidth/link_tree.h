// A node's links as its daemon tells them, what was measured of each, and what
// is worth keeping of that.
//
// A link that several others hang on is measured by all GPUs behind it at once.
// It limits something where that is less than what those carry by themselves.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
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

struct MeasurableLink {
  std::string name;
  std::optional<size_t> parent;  // an index into the same list
  std::vector<size_t> gpus;      // whose copies go over it
  // Whether its GPUs are not all those of one link below it, of which the same
  // would be measured.
  bool measurable = false;
  std::optional<MeasuredSpeeds> measured;
};

struct MeasurableNode {
  std::string driver;
  std::vector<std::string> gpu_links;  // by GPU
  std::vector<int64_t> gpu_free;       // bytes
  std::vector<MeasurableLink> links;
  std::vector<std::string> jobs;  // that have ranks here
};

// Of a snapshot (daemon/README.md). InvalidArgument: it has no links, as an
// older daemon's.
absl::StatusOr<MeasurableNode> ReadLinks(const std::string& snapshot);

// As TOML for the daemon's configuration: what limits something.
std::string ConfigurationOf(const MeasurableNode& node);

std::string RenderMeasured(const MeasurableNode& node);
// One line.
std::string MeasuredJson(const MeasurableNode& node, double seconds);

}  // namespace sluice::ctl
