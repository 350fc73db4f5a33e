#include "daemon/service/service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "daemon/runtime/process.h"
#include "daemon/service/log/log.h"
#include "proto/base/cgroup.h"
#include "proto/base/overloaded.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

// How long the requests of ranks that waited for a daemon are answered before
// administrators and scrapers are served.
constexpr absl::Duration kWhoWaited = absl::Milliseconds(20);
constexpr absl::Duration kLookAtMemoryEvery = absl::Seconds(1);
// One part in this many of the machine's memory should be available.
constexpr int kPartOfMemory = 16;

constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(250);

// Limits of one session.
constexpr int kMaxQueries = 16;
constexpr int kMaxUnread = 4;

void AddCountedByPolicy(const Core& core, QuotasSnapshot& quotas) {
  const auto add = [&](const Principal& who, size_t what, int64_t amount) {
    quotas.used[what] += amount;
    // `users` has only rows that the viewer may see.
    for (auto& [user, amounts] : quotas.users) {
      if (user == who) amounts[what] += amount;
    }
  };
  const auto waiting = static_cast<size_t>(Resource::kWaiting);
  quotas.refused[waiting] = core.stats().waits_refused;
  for (const auto& [place, waiter] : core.waiting().waiters()) {
    if (!waiter.for_plan) add(waiter.job.principal, waiting, 1);
  }
  const auto kept = static_cast<size_t>(Resource::kKeptProfiles);
  quotas.refused[kept] = core.stats().profiles_refused;
  for (const auto& [who, size] : core.planning().KeptProfiles()) {
    add(who, kept, size.count());
  }
}

// The longest wait for the store to drop everything. The next daemon drops what
// is left.
constexpr absl::Duration kLongestForget = absl::Milliseconds(500);
// The longest wait for the store to confirm what is left to the next daemon.
constexpr absl::Duration kLongestKeep = absl::Seconds(1);

// Lowers the node's limits of sessions, extents, waiting leases and kept
// profiles to those of `quotas` and `extents`. Each stays at least 1, except
// for a rank's part of the extents.
NodeConfig Bounded(NodeConfig node, const Quotas& quotas,
                   const Share& extents) {
  const Share& sessions = quotas.share(Resource::kSessions);
  const auto bound = [](auto& limit, int64_t most) {
    const auto before = static_cast<int64_t>(limit);
    limit = std::min(before, std::max<int64_t>(most, 1));
  };
  bound(node.max_sessions, sessions.all);
  bound(node.max_half_open, sessions.all / 2);
  bound(node.max_half_open_each, sessions.each / 2);
  ExtentLimits& limits = node.extent_limits;
  // Memory that is made ahead needs descriptors too.
  const int64_t ahead =
      std::ssize(node.hosts) * (node.host_ready / node.extent.host);
  bound(limits.all, extents.all - ahead);
  bound(limits.each, extents.each);
  const Share& waiting = quotas.share(Resource::kWaiting);
  bound(node.wait_limits.all, waiting.all);
  node.wait_limits.each =
      static_cast<size_t>(std::max<int64_t>(waiting.each, 1));
  const Share& kept = quotas.share(Resource::kKeptProfiles);
  node.profile_limit = {Bytes(kept.each), Bytes(kept.all)};
  // At most half of all extents are held back for the possible ranks.
  const auto ranks = static_cast<size_t>(quotas.share(Resource::kRanks).all);
  limits.per_rank = std::min<size_t>(limits.per_rank, limits.all / 2 / ranks);
  return node;
}

}  // namespace

Service::Service(ServiceOptions options)
    : options_(std::move(options)),
      quotas_(options_.shares),
      core_(Bounded(options_.node, quotas_, options_.extents),
            options_.clock->Now()),
      plan_files_(&core_),
      events_(options_.node.own_uid) {}

absl::StatusOr<std::unique_ptr<Service>> Service::Start(
    ServiceOptions options) {
  auto service = std::unique_ptr<Service>(new Service(std::move(options)));
  SLUICE_RETURN_IF_ERROR(service->Prepare());
  return service;
}

absl::Status Service::Prepare() {
  SLUICE_ASSIGN_OR_RETURN(loop_, Loop::Make(options_.clock));
  heartbeat_ = options_.starter.watchdog.value_or(absl::InfiniteDuration()) / 2;
  heartbeat_at_ = now() + heartbeat_;
  SLUICE_ASSIGN_OR_RETURN(
      handover_,
      Handover::Start(std::move(options_.starter), loop_.get(), &closer_));
  leaving_ = handover_->left_anything();
  SLUICE_ASSIGN_OR_RETURN(
      listener_,
      SessionListener::Open(
          {.path = options_.socket,
           .loop = loop_.get(),
           .closer = &closer_,
           .events = &events_,
           .accepted = [this](UniqueFd& socket) { return Connected(socket); }},
          std::move(options_.listener), *handover_));
  SLUICE_ASSIGN_OR_RETURN(signals_, OpenSignals());

  SLUICE_RETURN_IF_ERROR(core_.SetPolicy(options_.policy, now()));
  SLUICE_ASSIGN_OR_RETURN(grants_,
                          RankGrants::Start({.node = &options_.node,
                                             .quotas = &quotas_,
                                             .handover = handover_.get(),
                                             .clock = options_.clock},
                                            core_.config().links));
  MakeParts();
  SLUICE_ASSIGN_OR_RETURN(const bool goes_on, TakeOver());
  goes_on ? outside_->GoOn() : outside_->Start();
  events_.WriteNew(core_.log(), now());
  listener_->Start();
  if (options_.end_after_idle) {
    idle_end_.emplace(*options_.end_after_idle, now());
  }
  loop_->Add(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  loop_->SetWork([this] { return sessions_->TakeTurns(); });
  loop_->SetTimer([this] { return NextDeadline(); }, [this] { Expire(); });
  return absl::OkStatus();
}

void Service::MakeParts() {
  Channel::Handlers handlers;
  handlers.message = [this](SessionId id, wire::Message& m) {
    OnMessage(id, m);
  };
  handlers.ended = [this](SessionId id) {
    ReadCopies();
    Execute(core_.SocketEnded(id, now()));
  };
  handlers.broken = [this](SessionId id, const std::string& why) {
    Execute(core_.ProtocolBroken(id, why, now()));
  };
  handlers.gone = [this](SessionId id) { OnGone(id); };
  sessions_ = std::make_unique<Sessions>(
      Channel::Shared{loop_.get(), &closer_, &quotas_, std::move(handlers)},
      handover_.get(), options_.node.generation);
  Arena::Options ahead{.ready = options_.node.host_ready,
                       .extent = options_.node.extent.host};
  for (const HostConfig& host : options_.node.hosts) {
    ahead.nodes.push_back(host.numa);
  }
  if (UniqueFd clocks = handover_->Take(Handover::kClocks)) {
    options_.sim_clocks = std::make_shared<const UniqueFd>(std::move(clocks));
  }
  arena_ = std::make_unique<Arena>(options_.driver, ahead);
  extents_ = std::make_unique<Extents>(
      options_.driver, arena_.get(), loop_.get(), handover_.get(),
      [this](const std::vector<Core::ExtentOutcome>& outcomes) {
        Execute(core_.ExtentsMade(outcomes, now()));
      });
  outside_ = std::make_unique<OutsideWatch>(
      options_.driver, options_.node, loop_.get(), [this](HeldOutside held) {
        Execute(core_.OutsideKnown(std::move(held), now()));
      });
  codec_ = std::make_unique<TaskThread>("codec",
                                        TaskThread::Priority::kBehindTheLoop);
  snapshots_ = std::make_unique<Snapshots>(
      loop_.get(), options_.clock,
      [this](const Snapshots::View& view) { return TakeSnapshot(view); },
      options_.render);
  administration_ = std::make_unique<Administration>(Administration::Options{
      .loop = loop_.get(),
      .core = &core_,
      .snapshots = snapshots_.get(),
      .cgroups = options_.peers.cgroups,
      .write_policy = options_.write_policy,
      .execute = [this](Effects effects) { Execute(std::move(effects)); },
      .see_copies = [this] { ReadCopies(); }});
  reload_ = std::make_unique<Reload>(
      options_.check, loop_.get(),
      [this](const absl::Status& checked) { EndForReload(checked); });
  solver_ = std::make_unique<PlanSolver>(
      loop_.get(), codec_.get(), options_.worker,
      [this](PlanRoundId round, absl::StatusOr<plan::NodePlan> plan,
             std::vector<KeyedUnit> units) {
        Execute(
            core_.PlanSolved(round, std::move(plan), now(), std::move(units)));
      });
  profile_reader_ = std::make_unique<ProfileReader>(
      loop_.get(), codec_.get(), &quotas_,
      [this](SessionId session, RequestId request,
             absl::StatusOr<ProfileWithHash> profile) {
        Execute(core_.ProfileRead(session, request, std::move(profile), now()));
      });
}

Service::~Service() {
  if (leaving_ && sessions_) sessions_->Leave();
  RemoveSocket();
}

bool Service::Finish(absl::Duration patience) {
  const absl::Time deadline = now() + patience;
  const auto left = [&] { return deadline - now(); };
  bool finished = snapshots_->Finish(left());
  finished &= codec_->Finish(left());
  finished &= outside_->Finish(left());
  return extents_->Finish(left()) && finished;
}

void Service::AnswerWhoWaited() { loop_->RunWhatIsThere(kWhoWaited); }

void Service::Run() {
  loop_->BeUrgent();
  loop_->Run();
}

absl::Status Service::Connected(UniqueFd& socket) {
  SLUICE_ASSIGN_OR_RETURN(Identity identity,
                          IdentifyPeer(socket.get(), options_.peers));
  const Principal& who = identity.peer.principal;
  if (closer_.waiting_of(who) > Closer::kMostOfAUser) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} sent more than {} file descriptors that take long to close: "
        "wait until they are closed",
        Name(who), Closer::kMostOfAUser));
  }
  SLUICE_RETURN_IF_ERROR(quotas_.Ask(who, Resource::kSessions));
  const SessionId id(next_session_++);
  sessions_->Watch(id, who, std::move(socket), std::move(identity.pidfd));
  Execute(core_.Connect(id, identity.peer, now()));
  return absl::OkStatus();
}

void Service::RemoveSocket() {
  if (listener_ && !leaving_) listener_->Remove();
}

void Service::OnMessage(SessionId id, wire::Message& message) {
  const RequestId request(message.packet.id());
  const absl::Status handled = Handle(id, request, message);
  if (handled.ok()) return;
  // A packet that cannot be answered breaks the protocol. A request with a bad
  // field is refused, and the session continues.
  if (message.packet.has_request() && request != RequestId()) {
    return Refuse(id, request, handled);
  }
  Execute(core_.ProtocolBroken(id, std::string(handled.message()), now()));
}

void Service::Refuse(SessionId id, RequestId request, const absl::Status& why) {
  sessions_->Send(id, {ErrorPacket(request, why), {}});
}

absl::Status Service::Handle(SessionId id, RequestId request,
                             wire::Message& message) {
  if (message.lost_fds && message.packet.has_request() &&
      request != RequestId()) {
    return ShortOf(Shortage::kOpenFiles,
                   "sluiced has as many files open as it may: ask again, or "
                   "raise its LimitNOFILE");
  }
  SLUICE_RETURN_IF_ERROR(wire::CheckRequest(message));
  SLUICE_ASSIGN_OR_RETURN(Request body, ToRequest(message.packet.request()));
  SLUICE_RETURN_IF_ERROR(MayAsk(id, body, message.fds));
  // Only a profile's descriptor is kept: a memfd, which cannot block.
  const bool is_profile = std::holds_alternative<ProfileRequest>(body);
  if (is_profile) SLUICE_RETURN_IF_ERROR(wire::CheckMemfd(message.fds.front()));
  core_.Acknowledge(id, RequestId(message.packet.request().answered_up_to()));
  profile_ = is_profile ? &message.fds.front() : nullptr;
  Execute(core_.Receive(id, request, body, now()));
  profile_ = nullptr;
  return absl::OkStatus();
}

absl::Status Service::MayAsk(SessionId id, Request& request,
                             std::span<const UniqueFd> shown) {
  const Session* const session = core_.session(id);
  if (auto* hello = std::get_if<HelloRequest>(&request);
      // A repeated Hello was counted when it was first granted.
      hello && !hello->observer && session != nullptr &&
      session->state == Session::State::kHalfOpen) {
    const Principal& who = sessions_->Find(id)->who();
    const absl::Status may = quotas_.May(who, Resource::kRanks);
    if (!may.ok()) {
      quotas_.CountRefusal(Resource::kRanks);
      return may;
    }
    SLUICE_RETURN_IF_ERROR(MayBeKept(who));
    SLUICE_RETURN_IF_ERROR(core_.sessions().CheckGpu(hello->gpu));
    GpuAccess::Gpus gpus = options_.gpus.Shown(shown);
    SLUICE_RETURN_IF_ERROR(options_.gpus.May(gpus, hello->gpu.value()));
    gpus_[id].merge(gpus);  // also if policy refuses the Hello
    for (uint64_t gpu : gpus_[id]) hello->shown.insert(DeviceIndex(gpu));
  }
  if (const auto* lease = std::get_if<LeaseRequest>(&request);
      lease && lease->pool.kind == PoolKind::kGpu) {
    const auto shows = gpus_.find(id);
    // Without a Hello, policy will refuse the lease.
    if (shows == gpus_.end()) return absl::OkStatus();
    return options_.gpus.May(shows->second, lease->pool.ordinal);
  }
  return absl::OkStatus();
}

void Service::OnGone(SessionId id) {
  const Channel* channel = sessions_->Find(id);
  const Session* session = core_.session(id);
  if (channel == nullptr || session == nullptr) return;
  ReadCopies();
  std::vector<Core::Gone> gone = {
      {id, ReadExit(channel->pidfd(), session->peer)}};
  for (const auto& [id, channel] : sessions_->channels()) {
    const Session* const peer = core_.session(id);
    if (!session->was_rank() || peer == nullptr || peer == session ||
        !peer->was_rank() || peer->job() != session->job()) {
      continue;
    }
    // Ranks of a job are often killed at once.
    pollfd ended = {.fd = channel->pidfd(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, /*timeout=*/0) > 0) {
      gone.push_back({id, ReadExit(ended.fd, peer->peer)});
    }
  }
  Execute(core_.ProcessesGone(gone, now()));
}

absl::Time Service::EndOfIdleness() {
  if (!idle_end_) return absl::InfiniteFuture();
  return idle_end_->At(core_.sessions().ranks() > 0, now());
}

absl::Time Service::NextDeadline() {
  const bool is_idle = core_.ledger().IdleHost() > Bytes(0);
  return std::min(
      {core_.NextDeadline(), EndOfIdleness(), heartbeat_at_, end_at_,
       is_idle ? memory_at_ : absl::InfiniteFuture(), snapshots_->deadline(),
       sessions_->deadline(), solver_->NextDeadline(), reload_->deadline(),
       handover_->deadline(), listener_->deadline(), plan_files_.deadline(),
       SomeIsHeld() ? look_for_holders_at_ : absl::InfiniteFuture()});
}

void Service::Expire() {
  const absl::Time now = loop_->now();
  if (end_at_ <= now) return loop_->Stop();
  if (EndOfIdleness() <= now) {
    idle_end_.reset();
    WriteLog(LogLevel::kInfo, "no rank is attached any more");
    return End(Ending::kOfService);
  }
  if (heartbeat_at_ <= now) {
    handover_->store().Watchdog();
    heartbeat_at_ = now + heartbeat_;
  }
  if (memory_at_ <= now && core_.ledger().IdleHost() > Bytes(0)) {
    memory_at_ = now + kLookAtMemoryEvery;
    const auto memory = MachineMemory::Read();
    const Bytes missing = memory.total / kPartOfMemory - memory.available;
    if (missing > Bytes(0)) Execute(core_.MachineNeeds(missing));
  }
  if (look_for_holders_at_ <= now && SomeIsHeld()) LookForHolders();
  listener_->Expire(now);
  reload_->Expire(now);
  snapshots_->Expire();
  plan_files_.Expire(now);
  sessions_->Expire();
  solver_->Expire();
  Execute(core_.Tick(now));
}

// --- what an earlier daemon left, and what is left to the next one ----------

absl::Status Service::MayBeKept(const Principal& who) const {
  if (!handover_->keeps()) return absl::OkStatus();
  // The store's places that extents leave free are for ranks. One user may have
  // three quarters of them, or more if the user may have nearly all ranks. A
  // process of an ended session takes a place too.
  const Share& ranks = quotas_.share(Resource::kRanks);
  Share places{.all = handover_->store().capacity() - options_.extents.all -
                      Handover::kOwn};
  places.each =
      std::max(places.all * 3 / 4,
               places.all * ranks.each / std::max<int64_t>(ranks.all, 1));
  // Without room for one rank, no rank is kept, and the log has said so.
  if (places.all < Handover::kOfRank) return absl::OkStatus();
  int64_t all = 0, own = 0;
  for (const auto& [id, channel] : sessions_->channels()) {
    const Session* session = core_.session(id);
    if (session == nullptr || !session->was_rank()) continue;
    // For a closed session, the store keeps only the pidfd.
    const int64_t taken = session->is_rank() ? Handover::kOfRank : 1;
    all += taken;
    if (channel->who() == who) own += taken;
  }
  const bool is_own = own + Handover::kOfRank > places.each;
  if (!is_own && all + Handover::kOfRank <= places.all) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "{} has {} descriptors kept for the next daemon, {} for a rank and 1 for "
      "a process whose session ended, and the limit is {}: end processes that "
      "closed their sessions, or raise FileDescriptorStoreMax= of the unit, or "
      "--max-descriptors of sluiced-keeper",
      is_own ? Name(who) : "this node", is_own ? own : all, Handover::kOfRank,
      is_own ? places.each : places.all));
}

absl::StatusOr<bool> Service::TakeOver() {
  handover_->Take(Handover::kDeaths);  // not used here: the caller has read it
  if (options_.http && options_.http().goes_on) {
    handover_->Take(Handover::kHttp);
  }
  auto saved = handover_->ReadState(core_);
  const bool any = saved.ok() && saved->has_value();
  if (any) Pass("state-read");
  const absl::Status taken = any ? Adopt(**std::move(saved)) : saved.status();
  SLUICE_RETURN_IF_ERROR(
      Annotate(taken, "what an earlier daemon left stays as it is"));
  handover_->DropRest();
  // Adopt has begun saving already, before a client saw the adopted state.
  if (!any) {
    next_session_ = handover_->last_session_left().value() + 1;
    handover_->Begin(core_, now());
  }
  KeepOnce(Handover::kListener, listener_->fd());
  KeepOnce(Handover::kLimits, grants_->pages().kept().get());
  const SharedFd& clocks = options_.sim_clocks;
  if (clocks) KeepOnce(Handover::kClocks, clocks->get());
  if (options_.deaths >= 0) KeepOnce(Handover::kDeaths, options_.deaths);
  return any;
}

void Service::KeepOnce(const char* name, int fd) {
  if (!handover_->Kept(name)) handover_->Keep(name, fd);
}

absl::Status Service::Adopt(CoreState saved) {
  const absl::Status adopted = AdoptExtents(saved);
  if (!adopted.ok()) extents_->Abandon();
  SLUICE_RETURN_IF_ERROR(adopted);
  Pass("extents-adopted");
  std::set<SessionId> reached;
  std::vector<Core::Gone> gone;
  for (const auto& [id, session] : saved.sessions) {
    // A session without kept descriptors had no Welcome, so it holds nothing.
    const bool closed = session.state == Session::State::kClosed;
    const bool process = handover_->Left(Handover::ProcessOf(id));
    if (closed && process) {
      sessions_->Adopt(id, session.peer.principal, UniqueFd(),
                       handover_->Take(Handover::ProcessOf(id)));
    } else if (session.is_rank() && process &&
               handover_->Left(Handover::SocketOf(id)) &&
               handover_->Left(Handover::UsePageOf(id))) {
      const absl::Status adopted = AdoptRank(session);
      if (adopted.ok()) {
        reached.insert(id);
      } else {
        WriteLog(LogLevel::kError, std::string(adopted.message()));
      }
    } else {
      gone.push_back({id, {}});
    }
  }
  Pass("sessions-adopted");
  next_session_ = saved.last_session.value() + 1;
  core_.Load(std::move(saved));
  Pass("core-loaded");
  const absl::Time now = loop_->now();
  Effects effects = core_.TakeOver(reached, now);
  handover_->Begin(core_, now);
  Pass("adopted-saved");
  Execute(std::move(effects));
  if (!gone.empty()) Execute(core_.ProcessesGone(gone, now));
  Pass("taken-over");
  return absl::OkStatus();
}

absl::Status Service::AdoptExtents(const CoreState& saved) {
  for (const auto& [pool, extents] : saved.ledger.pools) {
    for (const auto& [id, extent] : extents.extents) {
      if (extent.state == Pool::State::kMaking) continue;
      SLUICE_RETURN_IF_ERROR(extents_->Adopt(
          id, pool, extent.size, handover_->Take(Handover::NameOf(id))));
    }
  }
  return absl::OkStatus();
}

absl::Status Service::AdoptRank(const Session& session) {
  const Principal& who = session.peer.principal;
  sessions_->Adopt(session.id, who,
                   handover_->Take(Handover::SocketOf(session.id)),
                   handover_->Take(Handover::ProcessOf(session.id)));
  SLUICE_RETURN_IF_ERROR(grants_->Resume(session, core_.config().WeightOf(who),
                                         core_.ledger().HasLease(session.id)));
  gpus_[session.id] = {session.hello.gpu.value()};
  for (DeviceIndex gpu : session.hello.shown) {
    gpus_[session.id].insert(gpu.value());
  }
  return absl::OkStatus();
}

void Service::SayReady() {
  handover_->store().Ready("serving");
  Pass("ready-told");
}

// --- one function per effect -------------------------------------------------

void Service::Execute(Effects effects) {
  Pass("change-unsaved");
  handover_->Save(core_, now());
  Pass("change-saved");
  ++executing_;
  for (Effect& effect : effects) {
    std::visit(
        Overloaded{
            [&](DestroyExtent& e) { extents_->Destroy(e.id); },
            [&](HoldsMemory& e) { grants_->pages().Hold(e.slot, e.holds); },
            [&](PromiseCopies& e) {
              grants_->pages().Promise(e.slot, e.rates);
            },
            [&](UseLinks& e) { grants_->pages().UseLinks(std::move(e.links)); },
            [&](AttachGrants& e) {
              const Principal& who = sessions_->Find(e.session)->who();
              const SharedFd page = grants_->Attach(e, who);
              if (page) sessions_->HoldUntilKept(e.session, page->get());
            },
            [&](DetachGrants& e) { grants_->Detach(e.slot); },
            [&](KillProcess& e) {
              const Channel* channel = sessions_->Find(e.session);
              if (channel == nullptr) return;
              syscall(SYS_pidfd_send_signal, channel->pidfd(), SIGKILL, nullptr,
                      0);
            },
            [&](CloseSocket& e) {
              sessions_->EndSocket(e.session);
              grants_->DropUsePage(e.session);
              profile_reader_->Forget(e.session);
            },
            [&](Forget& e) {
              sessions_->Forget(e.session);
              gpus_.erase(e.session);
            },
            [&](SolvePlan& e) { solver_->Solve(std::move(e)); },
            [&](StopSolving& e) { solver_->Stop(e.round); },
            [&](HurrySolving& e) { solver_->Hurry(e.round); },
            [&](auto& other) { Do(other); }},
        effect);
  }
  if (!holders_.empty() && !SomeIsHeld()) holders_.clear();
  Pass("effects-done");
  if (--executing_ == 0 && core_.NoticesSent()) {
    handover_->Save(core_, now());
  }
  events_.WriteNew(core_.log(), now());
}

void Service::Do(MakeExtent& effect) {
  const auto& [id, pool, size, who] = effect;
  if (UniqueFd kept = handover_->Take(Handover::NameOf(id))) {
    return extents_->AdoptMade(id, pool, size, std::move(kept));
  }
  extents_->Make(id, pool, size, who);
}

// Runs on the loop, because it costs one system call for each of few extents.
void Service::Do(AskHolders& effect) {
  std::vector<Core::HolderAnswer> answers;
  for (ExtentId id : effect.extents) {
    answers.push_back({id, extents_->HeldByOthers(id)});
  }
  Execute(core_.HoldersKnown(answers, now()));
}

bool Service::SomeIsHeld() const {
  return options_.find_holders &&
         std::ranges::any_of(core_.ledger().pools(), [](const auto& each) {
           const Pool& pool = each.second;
           return pool.lingering() + pool.quarantined() + pool.outside() >
                  Bytes(0);
         });
}

// Not on the codec's thread: a search is long if a user has many mappings.
void Service::LookForHolders() {
  look_for_holders_at_ = absl::InfiniteFuture();  // a search runs
  outside_->Run([this] {
    const absl::Duration before = CpuTimeOfThisThread();
    auto found = options_.find_holders();
    const absl::Duration pause =
        std::max(kLookAgainAfter, 50 * (CpuTimeOfThisThread() - before));
    loop_->Post([this, pause, found = std::move(found)]() mutable {
      if (SomeIsHeld()) holders_ = std::move(found);
      look_for_holders_at_ = now() + pause;
    });
  });
}

void Service::Do(SendReply& effect) {
  const auto& [session, request, reply] = effect;
  if (const auto* query = std::get_if<SnapshotReply>(&reply)) {
    return AnswerQuery(session, request, query->plan);
  }
  if (const auto* granted = std::get_if<GrantedReply>(&reply)) {
    return SendGranted(session, request, *granted);
  }
  absl::Status error;
  Outgoing out;
  out.packet.set_id(request.value());
  wire::Reply* const to = out.packet.mutable_reply();
  if (const auto* failed = std::get_if<absl::Status>(&reply)) {
    error = *failed;
  } else if (const auto* welcome = std::get_if<WelcomeReply>(&reply)) {
    error = FillWelcome(session, *welcome, out);
  } else if (const auto* submitted = std::get_if<SubmittedReply>(&reply)) {
    to->mutable_submitted()->set_waiting_for(submitted->waiting_for);
  } else if (const auto* noted = std::get_if<NotedReply>(&reply)) {
    wire::Noted* const body = to->mutable_noted();
    const Session* const of = core_.session(session);
    if (noted->room && of != nullptr) {
      FillPool(core_, *noted->room, &of->peer.principal, body->mutable_gpu());
    }
  } else {
    to->mutable_freed();
  }
  if (!error.ok()) return Refuse(session, request, error);
  sessions_->Send(session, std::move(out));
}

void Service::SendGranted(SessionId session, RequestId request,
                          const GrantedReply& granted) {
  std::vector<SharedFd> fds;
  for (const Slice& slice : granted.slices) {
    auto fd = extents_->Fd(slice.id);
    if (!fd.ok()) {
      // Posted as a later event, because effects are being executed.
      loop_->Post([this, session, lease = granted.lease, why = fd.status()] {
        Execute(core_.GrantNotSent(session, lease, why, now()));
      });
      return;
    }
    fds.push_back(*std::move(fd));
  }
  for (Outgoing& part :
       GrantedParts(request, granted, fds, sessions_->most_descriptors())) {
    sessions_->Send(session, std::move(part));
  }
}

absl::Status Service::FillWelcome(SessionId session,
                                  const WelcomeReply& welcome, Outgoing& out) {
  auto* body = out.packet.mutable_reply()->mutable_welcome();
  body->set_session_id(session.value());
  body->set_protocol(welcome.protocol);
  body->set_kept(handover_->keeps());
  const Session* of = core_.session(session);
  FillNode(core_, options_.sim_directory, welcome.observer ? nullptr : of,
           *body);
  const device::HostMemoryKind host = options_.driver->HostMemory();
  body->set_host_memory(host.name);
  body->set_host_memory_why(host.why);
  if (welcome.observer) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const SharedFd use, grants_->UsePageOf(session));
  body->set_grant_slot(static_cast<uint32_t>(welcome.grant_slot));
  out.fds = {grants_->pages().limits(), use};
  if (options_.sim_clocks) out.fds.push_back(options_.sim_clocks);
  return absl::OkStatus();
}

void Service::Do(SendNotice& effect) {
  Outgoing out;
  *out.packet.mutable_event() = ToEvent(effect.notice);
  const PlanId plan = std::visit(
      [](const auto& notice) -> PlanId {
        if constexpr (requires { notice.plan; }) return notice.plan;
        return {};
      },
      effect.notice);
  if (plan != PlanId()) {
    const auto fd = plan_files_.Of(plan, now());
    if (fd.ok()) {
      out.fds.push_back(*fd);
    } else if (std::holds_alternative<PlanChangedNotice>(effect.notice)) {
      // The rank continues with its former plan. Posted as a later event,
      // because effects are being executed.
      WriteLog(LogLevel::kError, std::string(fd.status().message()));
      loop_->Post([this, session = effect.session, plan] {
        Execute(core_.ChangeNotSent(session, plan, now()));
      });
      return;
    } else if (std::holds_alternative<TakenOverNotice>(effect.notice)) {
      *out.packet.mutable_event() = ToEvent(TakenOverNotice{});
    } else {
      *out.packet.mutable_event() = ToEvent(PlanFailedNotice{
          std::string(fd.status().message()), ShortageOf(fd.status())});
    }
  }
  sessions_->Send(effect.session, std::move(out));
}

void Service::Do(ReadProfile& effect) {
  const Session* session = core_.session(effect.session);
  if (session == nullptr) return;
  const absl::Status taken =
      profile_ != nullptr
          ? profile_reader_->Read(effect.session, effect.request,
                                  session->peer.principal, *profile_)
          : absl::InvalidArgumentError("a repeated request lacks its profile");
  if (taken.ok()) return;
  // Posted as a later event, because effects are being executed.
  loop_->Post([this, id = effect.session, request = effect.request, taken] {
    Execute(core_.ProfileRead(id, request, taken, now()));
  });
}

void Service::ReadCopies() {
  core_.CopiesSeen(grants_->pages().Used(), grants_->pages().Late());
}

// --- reading the state: queries of sessions, and snapshots ------------------

void Service::AnswerQuery(SessionId id, RequestId request, PlanId plan) {
  const Session* session = core_.session(id);
  if (session == nullptr || sessions_->Find(id) == nullptr) return;
  int& waiting = queries_[id];
  if (waiting >= kMaxQueries) {
    return Refuse(id, request,
                  absl::ResourceExhaustedError(fmt::format(
                      "{} queries of this session wait for an answer, and the "
                      "limit is {}: wait for one",
                      waiting, kMaxQueries)));
  }
  ++waiting;
  const Principal* viewer = core_.sessions().ViewerOf(*session);
  Snapshots::View view{.observer = session->hello.observer, .text = true};
  if (viewer != nullptr) view.principal = *viewer;
  snapshots_->Ask(view, [this, id, request, plan](const auto& answer) {
    if (--queries_[id] == 0) queries_.erase(id);
    Channel* const to = sessions_->Find(id);
    if (to == nullptr) return;
    auto out = SnapshotPacket(request, plan, answer);
    const bool is_long = out.ok() && !out->fds.empty();
    if (is_long && to->unread_memfds() >= kMaxUnread) {
      out = absl::ResourceExhaustedError(fmt::format(
          "this session has {} long answers that it has not read, and the "
          "limit is {}: read one",
          to->unread_memfds(), kMaxUnread));
    }
    if (!out.ok()) return Refuse(id, request, out.status());
    if (is_long) to->CountMemfd();
    sessions_->Send(id, *std::move(out));
  });
}

Snapshot Service::TakeSnapshot(const Snapshots::View& view) {
  for (const auto& [round, progress] : solver_->Progress()) {
    core_.PlanProgressed(round, progress);
  }
  ReadCopies();
  const Principal* const viewer = view.principal ? &*view.principal : nullptr;
  Snapshot snapshot = core_.TakeSnapshot(viewer, now());
  if (view.observer) --snapshot.sessions;  // without the observer that asks
  for (PoolSnapshot& host : snapshot.hosts) {
    host.ready = arena_->ready(NumaIndex(host.id.ordinal));
  }
  device::HostMemoryKind kind = options_.driver->HostMemory();
  snapshot.host_memory = std::move(kind.name);
  snapshot.host_memory_why = std::move(kind.why);
  profile_reader_->GiveBackDropped();
  snapshot.quotas = quotas_.TakeSnapshot(viewer);
  AddCountedByPolicy(core_, snapshot.quotas);
  const LogLosses losses = ReadLogLosses();
  snapshot.log_lines_dropped = losses.dropped;
  snapshot.log_lines_suppressed = losses.suppressed;
  const DescriptorStore& store = handover_->store();
  if (store.keeps() || store.lost()) snapshot.kept = handover_->saves();
  if (options_.http) snapshot.http = options_.http();
  AddHolders(view, snapshot);
  snapshot.grant_stale_periods = grants_->pages().stale_periods();
  snapshot.descriptors_closing = closer_.waiting();
  return snapshot;
}

void Service::AddHolders(const Snapshots::View& view, Snapshot& snapshot) {
  if (!SomeIsHeld()) return;
  std::set<int> attached;
  for (const auto& [id, channel] : sessions_->channels()) {
    const Session* const session = core_.session(id);
    if (session && session->is_rank()) attached.insert(session->peer.pid);
  }
  for (const HolderSnapshot& holder : holders_) {
    const bool shown = !view.principal || view.principal->uid == holder.uid;
    if (shown && !attached.contains(holder.pid)) {
      snapshot.holders.push_back(holder);
    }
  }
}

absl::StatusOr<Outgoing> Service::SnapshotPacket(
    RequestId request, PlanId plan,
    const absl::StatusOr<Snapshots::Answer>& answer) {
  SLUICE_RETURN_IF_ERROR(answer.status());
  Outgoing out;
  out.packet.set_id(request.value());
  auto* body = out.packet.mutable_reply()->mutable_snapshot();
  body->set_json(answer->text);
  if (answer->memfd) out.fds.push_back(answer->memfd);
  if (plan != PlanId()) {
    SLUICE_ASSIGN_OR_RETURN(out.fds.emplace_back(),
                            plan_files_.Of(plan, now()));
  }
  return out;
}

// --- signals, and how a service ends ----------------------------------------

void Service::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const int signal = static_cast<int>(info.ssi_signo);
  if (IsEndingSignal(signal)) {
    const bool service =
        info.ssi_code == SI_QUEUE && info.ssi_int == kEndsService;
    return End(service ? Ending::kOfService : Ending::kForRanks);
  }
  if (signal == SIGHUP) return OnReload();
  WriteLog(LogLevel::kWarning,
           fmt::format("SIG{} is ignored", sigabbrev_np(signal)));
}

void Service::OnReload() {
  if (options_.check.empty() || !handover_->saves()) {
    return WriteLog(
        LogLevel::kWarning,
        "SIGHUP: the configuration is read at the start only, because no store "
        "keeps for the next daemon what jobs hold: run sluiced by systemd or "
        "sluiced-keeper, or restart it when no job runs");
  }
  WriteLog(LogLevel::kInfo, "SIGHUP: the configuration is being checked");
  reload_->Ask();
}

void Service::EndForReload(const absl::Status& checked) {
  if (!checked.ok()) {
    return WriteLog(LogLevel::kWarning,
                    fmt::format("the configuration stays as it was: {}",
                                std::string(checked.message())));
  }
  // Saving may have stopped during the check.
  if (!handover_->saves()) return OnReload();
  WriteLog(LogLevel::kInfo,
           "the configuration is good: the next daemon reads it");
  End(Ending::kForAll);
}

void Service::End(Ending how) {
  reload_->Stop();
  loop_->Remove(signals_.get());
  listener_->Stop();
  // No more requests are read: the clients repeat them to the next daemon.
  loop_->SetWork([] { return false; });
  snapshots_->Clear();
  leaving_ = handover_->saves() &&
             (how == Ending::kForAll ||
              (how == Ending::kForRanks && core_.sessions().has_ranks()));
  end_at_ = now() + (leaving_ ? kLongestKeep : kLongestForget);
  if (leaving_) return handover_->WhenKept([this] { loop_->Stop(); });
  Execute(core_.ShutDown("sluiced was stopped", now()));
  // Clients that connect from now on wait for a next daemon.
  const bool kept = how != Ending::kOfService && handover_->saves();
  if (kept) listener_->LeavePath();
  handover_->LeaveNothing([this] { loop_->Stop(); }, /*listeners=*/kept);
}

}  // namespace sluice::daemon
