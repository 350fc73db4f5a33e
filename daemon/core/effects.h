// Requests to policy, and its replies, notices and effects. Plain data.
//
// Requests have a checked form (wire::CheckRequest). Requests, replies and
// notices are the protocol's messages without protobuf. Effects are executed in
// the order of their list.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "daemon/core/planning/unit_cache.h"
#include "daemon/core/pool/pool.h"
#include "proto/base/shortage.h"
#include "proto/base/step_report.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::daemon {

// --- messages
struct HelloRequest {
  std::string job = "default";
  bool observer = false;
  Rank rank;
  int world_size = 1;
  int local_ranks = 1;
  DeviceIndex gpu;
  uint32_t protocol = 1;  // the version that both sides agreed on
  // The GPUs for which the client sent device nodes with the request.
  std::set<DeviceIndex> shown;
  bool operator==(const HelloRequest&) const = default;
};
struct LeaseRequest {
  PoolId pool;
  Bytes size;
  absl::Duration wait = absl::ZeroDuration();  // at most; 0: no wait
  bool operator==(const LeaseRequest&) const = default;
};
struct FreeRequest {
  LeaseId lease;
};
// The client no longer waits for the answer to a lease request.
struct GiveUpRequest {
  RequestId request;
};
// Asks for a plan. The profile follows with Core::ProfileRead.
struct ProfileRequest {};
struct StepReportRequest {
  // Implicit, so that a report can be used as a request.
  StepReportRequest(StepReport told, std::vector<double> maps = {})
      : step(told), map_seconds(std::move(maps)) {}
  StepReport step;
  // How long each mapping of a lease took since the rank's last report.
  std::vector<double> map_seconds;
};
// Reports how much memory of the session's GPU all processes use, as the rank's
// driver says. Sent when the rank's use outside its lease may have changed.
struct GpuUseRequest {
  Bytes used;
};
// The answer to a PlanChangedNotice.
struct PlanTakenRequest {
  PlanId plan;
  bool taken = false;  // false: the rank continues with its former plan
  std::string note;    // one line that says what the rank did
};
// Asks for the status, and for a plan unless `plan` is 0.
struct QueryRequest {
  PlanId plan;
};
using Request =
    std::variant<HelloRequest, LeaseRequest, FreeRequest, ProfileRequest,
                 StepReportRequest, PlanTakenRequest, QueryRequest,
                 GiveUpRequest, GpuUseRequest>;

struct WelcomeReply {
  bool observer = false;
  int grant_slot = 0;
  DeviceIndex gpu;
  uint32_t protocol = 1;
  bool operator==(const WelcomeReply&) const = default;
};
struct GrantedReply {
  LeaseId lease;
  std::vector<Slice> slices;
  bool operator==(const GrantedReply&) const = default;
};
struct FreedReply {
  bool operator==(const FreedReply&) const = default;
};
struct SubmittedReply {
  int waiting_for = 0;
  bool operator==(const SubmittedReply&) const = default;
};
struct NotedReply {
  // The reply to a GpuUseRequest reports what is free in this pool.
  std::optional<PoolId> room;
  bool operator==(const NotedReply&) const = default;
};
struct SnapshotReply {
  PlanId plan;
  bool operator==(const SnapshotReply&) const = default;
};
using Reply = std::variant<absl::Status, WelcomeReply, GrantedReply, FreedReply,
                           SubmittedReply, NotedReply, SnapshotReply>;

struct PeerDiedNotice {
  std::string job;
  Rank rank;
  std::string reason;
};
struct EvictedNotice {
  std::string reason;
};
struct PlanReadyNotice {
  PlanId plan;
};
struct PlanChangedNotice {
  PlanId plan;  // in force from the job's next step boundary on
};
struct PlanFailedNotice {
  std::string reason;
  Shortage shortage = Shortage::kNone;  // what ran out during planning
  bool peer_left = false;               // another rank left
};
struct ShuttingDownNotice {
  std::string reason;
};
// Another daemon has taken over this session. `plan` answers the last profile
// that the rank submitted, in case the rank missed the answer. If it is 0, a
// rank that waits for a plan must submit again.
struct TakenOverNotice {
  PlanId plan;
};
// Sent for a lease that takes long, whenever memory of its pool was made.
struct LeaseProgressNotice {
  RequestId request;
  Bytes made, size;
};
using Notice =
    std::variant<PeerDiedNotice, EvictedNotice, PlanReadyNotice,
                 PlanChangedNotice, PlanFailedNotice, ShuttingDownNotice,
                 TakenOverNotice, LeaseProgressNotice>;

// --- device
// Core::ExtentsMade reports the outcome. Executed after all earlier
// DestroyExtents of its pool.
struct MakeExtent {
  ExtentId id;
  PoolId pool;
  Bytes size;
  PrincipalId who;
};
struct DestroyExtent {
  ExtentId id;
};
// Asks which of these extents a process can still reach (Core::HoldersKnown).
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
// Closes the socket (packets sent before still arrive), but goes on watching
// the process.
struct CloseSocket {
  SessionId session;
};
// Stops watching the process, and drops the session.
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
// Tells grants whether the rank has a lease, granted or being made. Until its
// first HoldsMemory a rank has none.
struct HoldsMemory {
  int slot = 0;
  bool holds = false;
};
struct PromiseCopies {
  int slot = 0;
  CopyRates rates = {0, 0};
};
// Replaces the links that grants use. REQUIRES: no slot has a rank.
struct UseLinks {
  std::vector<LinkSpeed> links;
};

// --- plans
// Decodes the profile that came with this request for Core::ProfileRead.
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
  UnitCache::Units known;  // solved units of the profiles
  Principal who;           // the user that asks
};
struct StopSolving {
  PlanRoundId round;
};
// Another user waits, so after a short time the round's worker returns the
// first plan that it finds.
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
