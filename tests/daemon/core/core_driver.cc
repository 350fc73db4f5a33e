#include "tests/daemon/core/core_driver.h"

#include <cstdio>

#include "tests/daemon/core/effect_text.h"

namespace sluice::daemon {

NodeConfig SmallNode() {
  NodeConfig node;
  node.own_uid = 999;
  node.gpus = {{DeviceIndex(0), "GPU-a", "a", "pcie0", NumaIndex(0), MiB(16)},
               {DeviceIndex(1), "GPU-b", "b", "pcie1", NumaIndex(0), MiB(16)}};
  node.hosts = {{NumaIndex(0), MiB(32)}};
  node.links = {{"pcie0", 1e9, 1e9}, {"pcie1", 1e9, 1e9}};
  node.extent = {.gpu = MiB(4), .host = MiB(4)};
  return node;
}

void CoreDriver::Run(absl::FunctionRef<Effects(Core&)> event) {
  std::optional<CoreState> before;
  if (!core.waiting().empty()) before = core.Save();
  Effects effects = event(core);
  if (before) CheckOrder(*before);
  if (!core.waiting().empty() && ++turns_ % 4 == 0) CheckTurns();
  if (shadow_) {
    SLUICE_CHECK(EffectText(effects) == EffectText(event(*shadow_)));
  }
  Apply(std::move(effects));
}

absl::Status CoreDriver::Change(const PolicyChange& change) {
  absl::Status result;
  Run([&](Core& to) {
    auto effects = to.Apply(change, clock.Now());
    result = effects.status();
    return effects.ok() ? *std::move(effects) : Effects();
  });
  return result;
}

void CoreDriver::CheckSaved() const {
  const CoreState saved = core.Save();
  Core read(core.config(), clock.Now());
  read.Load(saved);
  read.CheckInvariants();
  SLUICE_CHECK(read.Save() == saved);
  // `holding` has exactly the slots of ranks with a lease, unless extents are
  // being made.
  for (const auto& [id, session] : saved.sessions) {
    if (!session.is_rank()) continue;
    const bool holds = holding.contains(session.grant_slot);
    SLUICE_CHECK(core.ledger().HasLease(id) == holds ||
                 (!holds && !to_make.empty()));
  }
}

void CoreDriver::CheckQuiet() const {
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

void CoreDriver::Shadow() {
  shadow_ = std::make_unique<Core>(core.config(), clock.Now());
  shadow_->Load(core.Save());
}

void CoreDriver::Inherit(const CoreDriver& ended) {
  core.Load(ended.core.Save());
  clock.Advance(ended.clock.Now() - clock.Now());
  extents = ended.extents;
  slots = ended.slots;
  holding = ended.holding;
  next_session_ = ended.next_session_;
  next_request_ = ended.next_request_;
}

SessionId CoreDriver::Connect(uint32_t uid, const std::string& cgroup,
                              int process) {
  const SessionId id(next_session_++);
  const int pid = process != 0 ? process : static_cast<int>(1000 + id.value());
  Run([&](Core& to) {
    return to.Connect(id, {{uid, cgroup}, pid, static_cast<uint64_t>(pid)},
                      clock.Now());
  });
  return id;
}

std::optional<Reply> CoreDriver::Ask(SessionId id, const Request& body,
                                     RequestId request) {
  if (request == RequestId()) request = RequestId(next_request_++);
  replies.erase({id, request});
  Run([&](Core& to) { return to.Receive(id, request, body, clock.Now()); });
  const auto reply = replies.find({id, request});
  if (reply == replies.end()) return std::nullopt;
  return reply->second;
}

SessionId CoreDriver::Attach(const std::string& job, int rank, int ranks,
                             uint32_t uid, uint64_t gpu) {
  const SessionId id = Connect(uid);
  Ask(id, HelloRequest{.job = job,
                       .rank = Rank(rank),
                       .world_size = ranks,
                       .local_ranks = ranks,
                       .gpu = DeviceIndex(gpu)});
  return id;
}

absl::StatusOr<GrantedReply> CoreDriver::Lease(SessionId id, PoolId pool,
                                               Bytes size) {
  const auto reply = Ask(id, LeaseRequest{pool, size});
  if (!reply) return absl::UnavailableError("no reply yet");
  if (const auto* why = std::get_if<absl::Status>(&*reply)) return *why;
  return std::get<GrantedReply>(*reply);
}

void CoreDriver::Die(SessionId id, Exit exit) {
  Run([&](Core& to) { return to.SocketEnded(id, clock.Now()); });
  Run([&](Core& to) { return to.ProcessesGone({{id, exit}}, clock.Now()); });
}

void CoreDriver::Apply(Effects effects) {
  for (const Effect& effect : effects) std::visit(*this, effect);
  core.CheckInvariants();
  if (watch) watch(core);
  while (answer_at_once && !to_ask.empty()) AnswerNext();
  while (make_at_once && !to_make.empty()) MakeNext();
}

void CoreDriver::AnswerNext() {
  std::vector<Core::HolderAnswer> answers;
  for (ExtentId id : to_ask.front().extents) {
    // The answer to an earlier query may have destroyed the extent.
    answers.push_back({id, extents.contains(id) ? held : Held::kUnknown});
  }
  to_ask.erase(to_ask.begin());
  Run([&](Core& to) { return to.HoldersKnown(answers, clock.Now()); });
}

void CoreDriver::MakeNext(absl::Status status) {
  MakeNext(std::vector{std::move(status)});
}

void CoreDriver::MakeNext(const std::vector<absl::Status>& made) {
  std::vector<Core::ExtentOutcome> outcomes;
  for (const absl::Status& status : made) {
    const ExtentId id = to_make.front();
    to_make.erase(to_make.begin());
    if (status.ok()) extents.insert(id);
    outcomes.push_back({id, status});
  }
  Run([&](Core& to) { return to.ExtentsMade(outcomes, clock.Now()); });
}

void CoreDriver::operator()(const DestroyExtent& e) {
  SLUICE_CHECK(extents.erase(e.id) == 1);
  destroyed.insert(e.id);
}

void CoreDriver::operator()(const SendReply& e) {
  replies[{e.session, e.request}] = e.reply;
  // A reply can send only extents that exist.
  if (const auto* granted = std::get_if<GrantedReply>(&e.reply)) {
    for (const Slice& slice : granted->slices) {
      SLUICE_CHECK(extents.contains(slice.id));
    }
  }
}

void CoreDriver::operator()(const SendNotice& e) {
  notices.emplace_back(e.session, e.notice);
}

void CoreDriver::operator()(const AttachGrants& e) {
  SLUICE_CHECK(slots.insert(e.slot).second);
}

void CoreDriver::operator()(const HoldsMemory& e) {
  SLUICE_CHECK(slots.contains(e.slot));
  if (e.holds) {
    holding.insert(e.slot);
  } else {
    holding.erase(e.slot);
  }
}

void CoreDriver::operator()(const PromiseCopies& e) {
  SLUICE_CHECK(slots.contains(e.slot));
  promises.push_back(e);
}

void CoreDriver::operator()(const UseLinks& e) {
  SLUICE_CHECK(slots.empty());
  links = e.links;
}

void CoreDriver::CheckOrder(const CoreState& before) const {
  const CoreState now = core.Save();
  for (const auto& [id, lease] : now.ledger.leases) {
    if (id.value() < before.ledger.next_lease) continue;
    if (now.ledger.reservations.contains(lease.pool)) continue;
    if (WasPromised(before, lease) || WasPromised(now, lease)) continue;
    PlaceInLine place{UINT64_MAX};
    for (const auto& [at, waiter] : before.waiting.waiters) {
      if (waiter.session == lease.session && waiter.request == lease.request) {
        place = at;
      }
    }
    for (const auto& [at, waiter] : before.waiting.waiters) {
      if (waiter.for_plan) continue;
      const auto still = now.waiting.waiters.find(at);
      // Smaller leases may pass in the first half of a wait. A grant may exceed
      // its request by less than an extent.
      const absl::Time half =
          waiter.since + (waiter.deadline - waiter.since) / 2;
      const bool may_pass =
          clock.Now() < half &&
          lease.size < waiter.asked.size + core.config().extent.host;
      SLUICE_CHECK(at > place || may_pass ||
                   still == now.waiting.waiters.end() ||
                   waiter.asked.pool != lease.pool ||
                   waiter.lacks != Waiter::Lacks::kPool ||
                   still->second.lacks != Waiter::Lacks::kPool);
    }
  }
}

void CoreDriver::CheckTurns() const {
  const absl::Time now = clock.Now();
  Core other(core.config(), now);
  other.Load(core.Save());
  // This event only makes the core try leases that are due.
  other.ChangeNotSent(SessionId(), PlanId(), now);
  for (const auto& [place, waiter] : core.waiting().waiters()) {
    if (waiter.for_plan) continue;
    const auto found = other.waiting().waiters().find(place);
    SLUICE_CHECK(found != other.waiting().waiters().end());
    SLUICE_CHECK(found->second == waiter);
  }
}

bool CoreDriver::WasPromised(const CoreState& state, const LeaseState& lease) {
  if (lease.pool.kind != PoolKind::kHost) return false;
  for (const auto& [place, each] : state.waiting.waiters) {
    if (each.for_plan && each.session == lease.session &&
        each.request == lease.request) {
      return true;
    }
  }
  const auto rank = state.joint.attached.find(lease.session);
  return rank != state.joint.attached.end() &&
         state.joint.members.contains(rank->second.job);
}

}  // namespace sluice::daemon
