// Effects: what policy tells the service to do. The service executes a list in
// its order. Plain data.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "daemon/core/node/types.h"
#include "daemon/core/planning/unit_cache.h"
#include "daemon/core/requests.h"
#include "proto/plan/request.h"

namespace sluice::daemon {

// --- device
// Ends in ExtentsMade. Executed after all earlier DestroyExtents of its pool.
struct MakeExtent {
  ExtentId id;
  PoolId pool;
  Bytes size;
  PrincipalId who;
};
struct DestroyExtent {
  ExtentId id;
};
// Asks which of these extents a process can still reach; ends in HoldersKnown.
struct AskHolders {
  std::vector<ExtentId> extents;
};

// --- sessions
struct SendReply {
  SessionId session;
  RequestId request;
  Reply reply;
};
struct SendNotice {
  SessionId session;
  Notice notice;
};
// Ends the socket (packets sent before still arrive), not the watch of its
// process.
struct CloseSocket {
  SessionId session;
};
// Stops watching the process, which has ended or is not needed, and drops its
// session.
struct Forget {
  SessionId session;
};
struct KillProcess {
  SessionId session;
};

// --- grants
struct AttachGrants {
  SessionId session;
  int slot = 0;
  DeviceIndex gpu;
  double weight = 1;
};
struct DetachGrants {
  int slot = 0;
};
// Whether the rank has a lease, or one that is being made. Initially false.
struct HoldsMemory {
  int slot = 0;
  bool holds = false;
};
// Sets the rate that is promised to the rank's copies.
struct PromiseCopies {
  int slot = 0;
  CopyRates rates = {0, 0};
};
// Replaces the links that grants use. REQUIRES: no slot has a rank.
struct UseLinks {
  std::vector<LinkSpeed> links;
};

// --- plans
// Decodes the profile that came with this request; ends in ProfileRead.
struct ReadProfile {
  SessionId session;
  RequestId request;
};
struct SolvePlan {
  PlanRoundId round;
  std::vector<std::shared_ptr<const plan::RankProfile>> profiles;
  std::vector<int64_t> jobs;  // RankProfile::job of each profile
  plan::NodeResources resources;
  absl::Duration time_limit;
  UnitCache::Units known;  // solved units that the profiles have
  Principal who;           // the user that asks
};
struct StopSolving {
  PlanRoundId round;
};
// Another user waits for the round, so its worker returns the first plan that
// it finds after a short turn.
struct HurrySolving {
  PlanRoundId round;
};

using Effect =
    std::variant<MakeExtent, DestroyExtent, AskHolders, SendReply, SendNotice,
                 CloseSocket, Forget, KillProcess, AttachGrants, DetachGrants,
                 HoldsMemory, PromiseCopies, UseLinks, ReadProfile, SolvePlan,
                 StopSolving, HurrySolving>;
using Effects = std::vector<Effect>;

}  // namespace sluice::daemon
