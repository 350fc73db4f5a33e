// Drives a Core as the service would, without a device or sockets: extents
// are made at once (or when the test says so), everything sent is kept, and
// the invariants are checked after each event.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/core/core.h"
#include "proto/base/status.h"
#include "tests/support/fake_clock.h"

namespace sluice::daemon {

// Two GPUs of 16 MiB on links of their own, one NUMA node of 32 MiB, extents
// of 4 MiB.
NodeConfig SmallNode();

inline PoolId Gpu(uint64_t i) { return {PoolKind::kGpu, i}; }
inline PoolId Host(uint64_t i) { return {PoolKind::kHost, i}; }

class CoreDriver {
 public:
  explicit CoreDriver(NodeConfig config = SmallNode())
      : core(std::move(config), clock.Now()) {}

  // Gives the core an event, and the same to its shadow, which must have the
  // same effects.
  void Run(absl::FunctionRef<Effects(Core&)> event);
  // What the core would save, read by another, is the same when that one saves
  // it, and it adds up there too.
  void CheckSaved() const;
  // Where time has nothing to do, it touches no row: each that is touched is
  // saved with the event (daemon/state), changed or not.
  void CheckQuiet() const;
  // From here on another core, which has read what this one saves, gets every
  // event too.
  void Shadow();

  // What `ended` saved, beside what outlives a daemon.
  void Inherit(const CoreDriver& ended);

  // `process`: several sessions of one process; 0: one of its own.
  SessionId Connect(uint32_t uid = 1, const std::string& cgroup = "/a",
                    int process = 0);
  // The answer; nullopt: none came (yet).
  std::optional<Reply> Ask(SessionId id, const Request& body,
                           RequestId request = RequestId());
  SessionId Attach(const std::string& job, int rank, int ranks = 1,
                   uint32_t uid = 1, uint64_t gpu = 0);
  // The lease, or the refusal's status.
  absl::StatusOr<GrantedReply> Lease(SessionId id, PoolId pool, Bytes size);
  void Die(SessionId id, Exit exit = {Exit::Kind::kSignal, 9});
  // As an administrator.
  absl::Status Change(const PolicyChange& change);

  // Executes effects and checks the invariants.
  void Apply(Effects effects);
  // Says of the extents that were asked about first what the device says.
  void AnswerNext();
  void MakeNext(absl::Status status = absl::OkStatus());
  // So many, told in one event.
  void MakeNext(const std::vector<absl::Status>& made);

  void operator()(const MakeExtent& e) { to_make.push_back(e.id); }
  void operator()(const DestroyExtent& e);
  void operator()(const AskHolders& e) { to_ask.push_back(e); }
  void operator()(const SendReply& e);
  void operator()(const SendNotice& e);
  void operator()(const CloseSocket& e) { closed.insert(e.session); }
  void operator()(const Forget& e) { forgotten.insert(e.session); }
  void operator()(const KillProcess& e) { killed.insert(e.session); }
  void operator()(const AttachGrants& e);
  void operator()(const DetachGrants& e) {
    SLUICE_CHECK(slots.erase(e.slot));
    holding.erase(e.slot);
  }
  void operator()(const HoldsMemory& e);
  void operator()(const PromiseCopies& e);
  void operator()(const UseLinks& e);
  void operator()(const ReadProfile& e) { to_read.push_back(e); }
  void operator()(const SolvePlan& e) { to_solve.push_back(e); }
  void operator()(const StopSolving& e) { stopped.insert(e.round); }
  void operator()(const HurrySolving& e) { hurried.insert(e.round); }

  template <typename T>
  std::vector<T> NoticesTo(SessionId id) const {
    std::vector<T> found;
    for (const auto& [to, notice] : notices) {
      const T* typed = std::get_if<T>(&notice);
      if (to == id && typed != nullptr) found.push_back(*typed);
    }
    return found;
  }

  testing::FakeClock clock;
  Core core;
  std::function<void(Core&)> watch;  // called after each event
  bool make_at_once = true;
  std::vector<ExtentId> to_make;
  // What the device says of each extent that it is asked about.
  Held held = Held::kNo;
  bool answer_at_once = true;
  std::vector<AskHolders> to_ask;
  std::set<ExtentId> extents, destroyed;
  std::map<std::pair<SessionId, RequestId>, Reply> replies;
  std::vector<std::pair<SessionId, Notice>> notices;
  std::set<SessionId> closed, forgotten, killed;
  std::set<int> slots;
  std::set<int> holding;  // slots of ranks that have a lease
  std::vector<PromiseCopies> promises;
  std::optional<std::vector<LinkSpeed>> links;  // that grants were told of
  std::vector<ReadProfile> to_read;
  std::vector<SolvePlan> to_solve;
  std::set<PlanRoundId> stopped, hurried;

 private:
  // Checks that no lease overtook the first that waited for a pool before the
  // event and still does; what is reserved and promised aside.
  void CheckOrder(const CoreState& before) const;
  // A core that has read this one tries every waiting lease, and grants none:
  // this one has missed no turn.
  void CheckTurns() const;
  // Host memory of a job's plan, or for which others made room.
  static bool WasPromised(const CoreState& state, const LeaseState& lease);

  std::unique_ptr<Core> shadow_;
  uint64_t next_session_ = 1;
  uint64_t next_request_ = 1;
  int turns_ = 0;
};

}  // namespace sluice::daemon
