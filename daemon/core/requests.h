// The requests of clients, already checked for form (wire::CheckRequest), and
// the replies and notices to them: the protocol's messages without protobuf.
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
  uint32_t protocol = 1;  // agreed by both sides
  // The GPUs of the device nodes that came with the request.
  std::set<DeviceIndex> shown;
  bool operator==(const HelloRequest&) const = default;
};
struct LeaseRequest {
  PoolId pool;
  Bytes size;
  // The longest wait before the request is refused; 0: it does not wait.
  absl::Duration wait = absl::ZeroDuration();
  bool operator==(const LeaseRequest&) const = default;
};
struct FreeRequest {
  LeaseId lease;
};
// The client no longer waits for the answer to a lease request.
struct GiveUpRequest {
  RequestId request;
};
// The profile itself follows with Core::ProfileRead.
struct ProfileRequest {};
struct StepReportRequest {
  // Implicit: a report alone is a request.
  StepReportRequest(StepReport told, std::vector<double> maps = {})
      : step(told), map_seconds(std::move(maps)) {}
  StepReport step;
  std::vector<double> map_seconds;  // per lease mapped since the last report
};
// The memory of the session's GPU that all processes use, as its driver reports
// it; sent when the rank's use outside its lease may have changed.
struct GpuUseRequest {
  Bytes used;
};
// The answer to a PlanChangedNotice.
struct PlanTakenRequest {
  PlanId plan;
  bool taken = false;  // false: it continues with its former plan
  std::string note;    // one line: what the rank did
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
  // Set after a GpuUseRequest: the reply reports what is free in this pool.
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
// New fractions, to be used from the next step boundary on.
struct PlanChangedNotice {
  PlanId plan;
};
struct PlanFailedNotice {
  std::string reason;
  Shortage shortage = Shortage::kNone;  // resource that ran out during planning
  bool peer_left = false;  // another rank left, so there is no plan
};
struct ShuttingDownNotice {
  std::string reason;
};
// Another daemon has taken over this session. `plan` is the answer to the last
// profile that the rank submitted, in case it missed it; 0 if there is none, so
// that a rank that waits for a plan submits again.
struct TakenOverNotice {
  PlanId plan;
};
// Sent for a lease that takes long, while memory of its pool is being made.
struct LeaseProgressNotice {
  RequestId request;
  Bytes made, size;
};
using Notice =
    std::variant<PeerDiedNotice, EvictedNotice, PlanReadyNotice,
                 PlanChangedNotice, PlanFailedNotice, ShuttingDownNotice,
                 TakenOverNotice, LeaseProgressNotice>;

}  // namespace sluice::daemon
