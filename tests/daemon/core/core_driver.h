// Drives a Core as the service would, without a device or sockets: extents
// are made at once (or when the test says so), everything sent is kept, and
// the invariants are checked after each event.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/core.h"
#include "proto/base/status.h"
#include "tests/daemon/core/effect_text.h"
#include "tests/support/fake_clock.h"

namespace sluice::daemon {

// Two GPUs of 16 MiB on links of their own, one NUMA node of 32 MiB, extents
// of 4 MiB.
inline NodeConfig SmallNode() {
  NodeConfig node;
  node.driver = "fake";
  node.own_uid = 999;
  node.gpus = {{DeviceIndex(0), "GPU-a", "a", "pcie0", NumaIndex(0), MiB(16)},
               {DeviceIndex(1), "GPU-b", "b", "pcie1", NumaIndex(0), MiB(16)}};
  node.hosts = {{NumaIndex(0), MiB(32)}};
  node.links = {{"pcie0", 1e9, 1e9}, {"pcie1", 1e9, 1e9}};
  node.extent = {.gpu = MiB(4), .host = MiB(4)};
  return node;
}

inline PoolId Gpu(uint64_t i) { return {PoolKind::kGpu, i}; }
inline PoolId Host(uint64_t i) { return {PoolKind::kHost, i}; }

class CoreDriver {
 public:
  explicit CoreDriver(NodeConfig config = SmallNode())
      : core(std::move(config), clock.Now()) {}

  // Gives the core an event, and the same to its shadow, whose effects must be
  // the same.
  template <typename Event>
  void Run(Event event) {
    std::optional<CoreState> before;
    if (!core.waiting().empty()) before = core.Save();
    Effects effects = event(core);
    if (before) CheckOrder(*before);
    if (shadow_) {
      SLUICE_CHECK(EffectText::Of(effects) == EffectText::Of(event(*shadow_)));
    }
    Apply(std::move(effects));
  }
  // What the core would save, read by another, is the same when that one saves
  // it, and it adds up there too.
  void CheckSaved() const {
    const CoreState saved = core.Save();
    Core read(core.config(), clock.Now());
    read.Load(saved);
    read.CheckInvariants();
    SLUICE_CHECK(read.Save() == saved);
  }
  // Where time has nothing to do, it touches no row: each that is touched is
  // saved with the event (daemon/state), changed or not.
  void CheckQuiet() const {
    Core quiet(core.config(), clock.Now());
    quiet.Load(core.Save());
    quiet.TakeChanged([](auto, const auto&, const auto*) {});
    if (!quiet.Tick(clock.Now()).empty()) return;
    std::string touched;
    quiet.TakeChanged([&](RowKind kind, const auto&, const auto*) {
      touched += static_cast<char>(kind);
    });
    if (touched.empty() || quiet.Save() != core.Save()) return;
    std::fprintf(stderr, "touched for nothing, rows of kind %s\n",
                 touched.c_str());
    SLUICE_CHECK(touched.empty());
  }
  // From here on another core, which has read what this one saves, gets every
  // event too.
  void Shadow() {
    shadow_ = std::make_unique<Core>(core.config(), clock.Now());
    shadow_->Load(core.Save());
  }

  // What `ended` saved, beside what outlives a daemon.
  void Inherit(const CoreDriver& ended) {
    core.Load(ended.core.Save());
    clock.Advance(ended.clock.Now() - clock.Now());
    extents = ended.extents;
    slots = ended.slots;
    next_session_ = ended.next_session_;
    next_request_ = ended.next_request_;
  }

  // `process`: several sessions of one process; 0: one of its own.
  SessionId Connect(uint32_t uid = 1, const std::string& cgroup = "/a",
                    int process = 0) {
    const SessionId id(next_session_++);
    const int pid =
        process != 0 ? process : static_cast<int>(1000 + id.value());
    Run([&](Core& to) {
      return to.Connect(id, {{uid, cgroup}, pid, static_cast<uint64_t>(pid)},
                        clock.Now());
    });
    return id;
  }
  // The answer; nullopt: none came (yet).
  std::optional<Reply> Ask(SessionId id, const Request& body,
                           RequestId request = RequestId()) {
    if (request == RequestId()) request = RequestId(next_request_++);
    replies.erase({id, request});
    Run([&](Core& to) { return to.Receive(id, request, body, clock.Now()); });
    const auto reply = replies.find({id, request});
    if (reply == replies.end()) return std::nullopt;
    return reply->second;
  }
  SessionId Attach(const std::string& job, int rank, int ranks = 1,
                   uint32_t uid = 1, uint64_t gpu = 0, double guaranteed = 0) {
    const SessionId id = Connect(uid);
    Ask(id, HelloRequest{.job = job,
                         .rank = Rank(rank),
                         .world_size = ranks,
                         .local_ranks = ranks,
                         .gpu = DeviceIndex(gpu),
                         .guaranteed_bytes_per_second = guaranteed});
    return id;
  }
  // The lease, or the refusal's status.
  absl::StatusOr<GrantedReply> Lease(SessionId id, PoolId pool, Bytes size) {
    const auto reply = Ask(id, LeaseRequest{pool, size});
    if (!reply) return absl::UnavailableError("no reply yet");
    if (const auto* why = std::get_if<absl::Status>(&*reply)) return *why;
    return std::get<GrantedReply>(*reply);
  }
  void Die(SessionId id, Exit exit = {Exit::Kind::kSignal, 9}) {
    Run([&](Core& to) { return to.SocketEnded(id, clock.Now()); });
    Run([&](Core& to) { return to.ProcessGone(id, exit, clock.Now()); });
  }

  // Executes effects and checks the invariants.
  void Apply(Effects effects) {
    for (const Effect& effect : effects) std::visit(*this, effect);
    core.CheckInvariants();
    if (watch) watch(core);
    while (answer_at_once && !to_ask.empty()) AnswerNext();
    while (make_at_once && !to_make.empty()) MakeNext();
  }
  // Says of the extents that were asked about first what the device says.
  void AnswerNext() {
    std::vector<Core::HolderAnswer> answers;
    for (ExtentId id : to_ask.front().extents) {
      // The answer to an earlier question may have ended it.
      answers.push_back({id, extents.contains(id) ? held : Held::kUnknown});
    }
    to_ask.erase(to_ask.begin());
    Run([&](Core& to) { return to.HoldersKnown(answers, clock.Now()); });
  }
  void MakeNext(absl::Status status = absl::OkStatus()) {
    MakeNext(std::vector{std::move(status)});
  }
  // So many, told in one event.
  void MakeNext(const std::vector<absl::Status>& made) {
    std::vector<Core::ExtentOutcome> outcomes;
    for (const absl::Status& status : made) {
      const ExtentId id = to_make.front();
      to_make.erase(to_make.begin());
      if (status.ok()) extents.insert(id);
      outcomes.push_back({id, status});
    }
    Run([&](Core& to) { return to.ExtentsMade(outcomes, clock.Now()); });
  }

  void operator()(const MakeExtent& e) { to_make.push_back(e.id); }
  void operator()(const DestroyExtent& e) {
    SLUICE_CHECK(extents.erase(e.id) == 1);
    destroyed.insert(e.id);
  }
  void operator()(const AskHolders& e) { to_ask.push_back(e); }
  void operator()(const SendReply& e) {
    replies[{e.session, e.request}] = e.reply;
    // Only what exists can be sent.
    if (const auto* granted = std::get_if<GrantedReply>(&e.reply)) {
      for (const Slice& slice : granted->slices) {
        SLUICE_CHECK(extents.contains(slice.id));
      }
    }
  }
  void operator()(const SendNotice& e) {
    notices.emplace_back(e.session, e.notice);
  }
  void operator()(const CloseSocket& e) { closed.insert(e.session); }
  void operator()(const Forget& e) { forgotten.insert(e.session); }
  void operator()(const KillProcess& e) { killed.insert(e.session); }
  void operator()(const AttachGrants& e) {
    SLUICE_CHECK(slots.insert(e.slot).second);
  }
  void operator()(const DetachGrants& e) { SLUICE_CHECK(slots.erase(e.slot)); }
  void operator()(const PromiseCopies& e) {
    SLUICE_CHECK(slots.contains(e.slot));
    promises.push_back(e);
  }
  void operator()(const LowerGuarantee& e) {
    SLUICE_CHECK(slots.contains(e.slot));
    lowered[e.slot] = e.bytes_per_second;
  }
  void operator()(const UseLinks& e) {
    SLUICE_CHECK(slots.empty());
    links = e.links;
  }
  void operator()(const ReadProfile& e) { to_read.push_back(e); }
  void operator()(const SolvePlan& e) { to_solve.push_back(e); }
  void operator()(const StopSolving& e) { stopped.insert(e.round); }
  void operator()(const HurrySolving& e) { hurried.insert(e.round); }
  void operator()(const SaveUnits& e) { saved.push_back(e.units); }

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
  std::vector<PromiseCopies> promises;
  std::map<int, double> lowered;                // guarantees
  std::optional<std::vector<LinkSpeed>> links;  // that grants were told of
  std::vector<ReadProfile> to_read;
  std::vector<SolvePlan> to_solve;
  std::set<PlanRoundId> stopped, hurried;
  std::vector<UnitCache::Units> saved;

 private:
  // Of what waited for a pool before the event and still does, the first was
  // overtaken by nobody there; what is reserved and promised aside.
  void CheckOrder(const CoreState& before) const {
    const CoreState now = core.Save();
    for (const auto& [id, lease] : now.ledger.leases) {
      if (id.value() < before.ledger.next_lease) continue;
      if (now.ledger.reservations.contains(lease.pool)) continue;
      if (WasPromised(before.joint, lease) || WasPromised(now.joint, lease)) {
        continue;
      }
      PlaceInLine place{Priority::kNormal, UINT64_MAX};
      for (const auto& [at, waiter] : before.waiting.waiters) {
        if (waiter.session == lease.session &&
            waiter.request == lease.request) {
          place = at;
        }
      }
      for (const auto& [at, waiter] : before.waiting.waiters) {
        const auto still = now.waiting.waiters.find(at);
        SLUICE_CHECK(at > place || still == now.waiting.waiters.end() ||
                     waiter.asked.pool != lease.pool ||
                     waiter.lacks != Waiter::Lacks::kPool ||
                     still->second.lacks != Waiter::Lacks::kPool);
      }
    }
  }
  // Host memory of a job's plan, or for which others made room.
  static bool WasPromised(const JointPlanningState& joint,
                          const LeaseState& lease) {
    if (lease.pool.kind != PoolKind::kHost) return false;
    for (const WaitingLease& each : joint.waiting_leases) {
      if (each.session == lease.session && each.request == lease.request) {
        return true;
      }
    }
    const auto rank = joint.attached.find(lease.session);
    return rank != joint.attached.end() &&
           joint.members.contains(rank->second.job);
  }

  std::unique_ptr<Core> shadow_;
  uint64_t next_session_ = 1;
  uint64_t next_request_ = 1;
};

}  // namespace sluice::daemon
