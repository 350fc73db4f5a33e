// Fixture: a node of 40 MiB of host memory on which jobs are planned together.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/planning/replan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {

// Returns a profile with a layer of 1 s and one class that takes 0.1 s to
// recompute.
std::shared_ptr<plan::RankProfile> ProfileOf(int rank, uint64_t gpu);

class Replan : public ::testing::Test {
 protected:
  explicit Replan(NodeConfig config = Node()) : node(std::move(config)) {}
  static NodeConfig Node();

  void Submit(SessionId id, std::shared_ptr<plan::RankProfile> profile,
              const std::string& hash);

  // Attaches a job of one rank, which requests a plan. Returns its session.
  SessionId Ask(const std::string& job, uint64_t gpu = 0, uint32_t uid = 1);

  // One job's part of a plan: the swapped fraction of its classes, and its host
  // bytes.
  struct Part {
    double swap;
    Bytes host;
  };
  static plan::NodePlan PlanOf(const std::vector<Part>& parts);
  // Answers the newest round with one part per job.
  void Solve(const std::vector<Part>& parts);
  LeaseId LeaseHost(SessionId id, Bytes size);
  void Free(SessionId id, LeaseId lease) { node.Ask(id, FreeRequest{lease}); }
  size_t Ready(SessionId id);
  std::vector<PlanId> Changes(SessionId id);
  std::vector<PlanningSnapshot> Planning(const Principal* viewer = nullptr);
  std::optional<PlanningSnapshot> PlanningOf(const std::string& job);
  uint64_t Count(ChangeOutcome what);
  void Wait(absl::Duration time);

  // Job a runs with everything swapped, in 32 of 40 MiB of host memory. Then
  // job b requests a plan, and the plan gives each job 16 MiB.
  void JoinThatWaits();
  // Does what a rank does at its step boundary: accepts the newest change, and
  // replaces `lease` by a lease of `size`.
  void TakeChange(SessionId id, LeaseId* lease, Bytes size);

  CoreDriver node;
  SessionId a, b;
  LeaseId held;
};

}  // namespace sluice::daemon
