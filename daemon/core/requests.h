// What clients ask of policy, already checked for form (wire::CheckRequest),
// and what it answers: the protocol's messages without protobuf.
//
// Plain data. Thread safety: values.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "daemon/core/pool/pool.h"
#include "proto/base/shortage.h"
#include "proto/base/step_report.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::daemon {

struct HelloRequest {
  std::string job = "default";
  bool observer = false;
  Rank rank;
  int world_size = 1;
  int local_ranks = 1;
  DeviceIndex gpu;
  uint32_t protocol = 1;        // what both sides speak
  std::set<DeviceIndex> shown;  // GPUs with device nodes that came with it
  bool operator==(const HelloRequest&) const = default;
};
struct LeaseRequest {
  PoolId pool;
  Bytes size;
  // How long it may wait where it would be refused; 0: not at all.
  absl::Duration wait = absl::ZeroDuration();
  bool operator==(const LeaseRequest&) const = default;
};
struct FreeRequest {
  LeaseId lease;
};
// Its client waits no more for the answer to a lease request.
struct GiveUpRequest {
  RequestId request;
};
// The profile itself follows by Core::ProfileRead.
struct ProfileRequest {};
struct StepReportRequest {
  // A report alone is one, too.
  StepReportRequest(StepReport told, std::vector<double> maps = {})
      : step(told), map_seconds(std::move(maps)) {}
  StepReport step;
  std::vector<double> map_seconds;  // of each lease since the last one
};
// What all processes use of the session's GPU, as its driver says; sent when
// what it holds there outside its lease may have changed.
struct GpuUseRequest {
  Bytes used;
};
// What became of a PlanChangedNotice.
struct PlanTakenRequest {
  PlanId plan;
  bool taken = false;  // else it went on with what it had
  std::string note;    // one line: what it did
};
// plan 0: status only.
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
  // After a GpuUseRequest: the pool of which the reply tells what there is now.
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
// New fractions, to be taken at the next step boundary.
struct PlanChangedNotice {
  PlanId plan;
};
struct PlanFailedNotice {
  std::string reason;
  Shortage shortage = Shortage::kNone;  // what ran out while it was planned
  bool peer_left = false;               // another rank, without which none is
};
struct ShuttingDownNotice {
  std::string reason;
};
// A daemon that took over has this session now. `plan` is the answer to the
// last profile that the rank submitted, which it may not have heard; 0 if there
// is none, so that a rank that waits for one submits again.
struct TakenOverNotice {
  PlanId plan;
};
// A lease that was asked for long ago is not there yet, and memory of its pool
// is being made.
struct LeaseProgressNotice {
  RequestId request;
  Bytes made, size;
};
using Notice =
    std::variant<PeerDiedNotice, EvictedNotice, PlanReadyNotice,
                 PlanChangedNotice, PlanFailedNotice, ShuttingDownNotice,
                 TakenOverNotice, LeaseProgressNotice>;

}  // namespace sluice::daemon
