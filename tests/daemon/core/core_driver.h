// Drives a Core as the service does, without a device or sockets. Extents are
// made at once, or when the test requests it. Sent replies and notices are
// kept. The invariants are checked after each event.
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

// Returns a node with two GPUs of 16 MiB on links of their own, one NUMA node
// of 32 MiB, and extents of 4 MiB.
NodeConfig SmallNode();

inline PoolId Gpu(uint64_t i) { return {PoolKind::kGpu, i}; }
inline PoolId Host(uint64_t i) { return {PoolKind::kHost, i}; }

class CoreDriver {
 public:
  explicit CoreDriver(NodeConfig config = SmallNode())
      : core(std::move(config), clock.Now()) {}

  // Passes an event to the core and to its shadow (see Shadow), and checks that
  // both return the same effects.
  void Run(absl::FunctionRef<Effects(Core&)> event);
  // Checks that another core can read what `core` saves, keeps the invariants,
  // and saves the same again.
  void CheckSaved() const;
  // Checks that Tick touches no row if nothing is due, because daemon/state
  // saves each touched row, changed or not.
  void CheckQuiet() const;
  // Makes a second core that reads what `core` saves. Run passes every later
  // event to both.
  void Shadow();

  // Loads what `ended` saved, and takes over its clock, extents and slots.
  void Inherit(const CoreDriver& ended);

  // Sessions with the same `process` share a process; 0 means a new process.
  SessionId Connect(uint32_t uid = 1, const std::string& cgroup = "/a",
                    int process = 0);
  // Sends a request. Returns the answer, or nullopt if none has come yet.
  std::optional<Reply> Ask(SessionId id, const Request& body,
                           RequestId request = RequestId());
  SessionId Attach(const std::string& job, int rank, int ranks = 1,
                   uint32_t uid = 1, uint64_t gpu = 0);
  absl::StatusOr<GrantedReply> Lease(SessionId id, PoolId pool, Bytes size);
  void Die(SessionId id, Exit exit = {Exit::Kind::kSignal, 9});
  // Applies a change as an administrator does.
  absl::Status Change(const PolicyChange& change);

  // Executes effects and checks the invariants.
  void Apply(Effects effects);
  // Answers the oldest query about holders of extents with `held`.
  void AnswerNext();
  void MakeNext(absl::Status status = absl::OkStatus());
  // Reports the results for the oldest `made.size()` extents in one event.
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
  // The device's answer for each extent of a query.
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
  // The link speeds last passed to the grants.
  std::optional<std::vector<LinkSpeed>> links;
  std::vector<ReadProfile> to_read;
  std::vector<SolvePlan> to_solve;
  std::set<PlanRoundId> stopped, hurried;

 private:
  // Checks that the event granted no lease before an older lease that still
  // waits for the same pool. Reserved and promised memory is exempt.
  void CheckOrder(const CoreState& before) const;
  // Checks that a copy of this core, which tries every waiting lease, grants
  // none.
  void CheckTurns() const;
  // Returns whether `lease` is host memory of a job's plan, or memory for which
  // other jobs made room.
  static bool WasPromised(const CoreState& state, const LeaseState& lease);

  std::unique_ptr<Core> shadow_;
  uint64_t next_session_ = 1;
  uint64_t next_request_ = 1;
  int turns_ = 0;
};

}  // namespace sluice::daemon
