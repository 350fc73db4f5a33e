// `sluicectl bandwidth measure`: measures copies between each GPU and host
// memory, finds which links limit them, and writes the links section of the
// daemon's configuration. Thread safety: one call at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/admin/admin.h"

namespace sluice::ctl {

struct MeasureOptions {
  std::string socket, admin_socket;
  double seconds = 1;  // over which each speed is averaged
  bool beside_jobs = false;
  bool json = false;
  std::string out;    // file for the configuration; empty: stdout
  bool keep = false;  // store the speeds in the daemon
};

// Returns the text to print. FailedPrecondition: jobs have ranks on this node,
// or the daemon cannot keep the speeds. Other errors are those of admin.h,
// sessions and leases.
absl::StatusOr<std::string> MeasureBandwidth(const MeasureOptions& options);

// Deletes the stored speeds. Returns the text to print.
absl::StatusOr<std::string> ForgetMeasured(const std::string& admin_socket,
                                           bool as_json);

// ---- Links: pure functions ----
//
// All GPUs below a link copy at once to measure it. A link above several links
// is a limit if it carries less than 0.95 of the sum that these links carry.

// Speeds in bytes per second.
struct MeasuredSpeeds {
  double h2d = 0;  // while the other direction is idle
  double d2h = 0;
  double both_h2d = 0;  // while both directions are busy
  double both_d2h = 0;
};

struct MeasurableLink {
  std::string name;
  std::optional<size_t> parent;  // index in the same list
  std::vector<size_t> gpus;      // the GPUs that copy over this link
  // False if the link has no GPUs, or the same GPUs as a link directly below.
  bool measurable = false;
  std::optional<MeasuredSpeeds> measured;
  LinkLimits set;        // the limits before measuring
  std::string set_from;  // "configuration", "measured"; empty: no limits
};

struct MeasurableNode {
  std::string driver;
  std::vector<std::string> gpu_links;  // the link of each GPU
  std::vector<int64_t> gpu_free;       // free bytes of each GPU
  std::vector<MeasurableLink> links;
  std::vector<std::string> jobs;   // jobs with ranks on this node
  std::set<std::string> attached;  // those of `jobs` with an open session
  bool keeps = false;              // whether the daemon can keep measurements
};

// InvalidArgument: the snapshot (daemon/README.md) is of another version.
absl::StatusOr<MeasurableNode> ReadLinks(const std::string& snapshot);

std::map<std::string, LinkLimits> LimitsOf(const MeasurableNode& node);
// Formats the limits as TOML for the daemon's configuration.
std::string ConfigurationOf(const MeasurableNode& node);

std::string RenderMeasured(const MeasurableNode& node);
// `kept`: whether the daemon uses the speeds now; nullopt: they are not stored.
std::string MeasuredJson(const MeasurableNode& node, double seconds,
                         std::optional<bool> kept = std::nullopt);

}  // namespace sluice::ctl
