#include "daemon/service/service.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "daemon/runtime/signals.h"
#include "daemon/service/bounds.h"
#include "daemon/service/log/log.h"
#include "proto/base/cgroup.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

// How long ranks that waited for a daemon are served before administrators and
// scrapers are.
constexpr absl::Duration kWhoWaited = absl::Milliseconds(20);
constexpr absl::Duration kLookAtMemoryEvery = absl::Seconds(1);
// One part in so many of a machine's memory is to stay available.
constexpr int kPartOfMemory = 16;

}  // namespace

Service::Service(ServiceOptions options)
    : options_(std::move(options)),
      core_(Bounded(options_.node, options_.shares, options_.extents),
            options_.clock->Now()),
      quotas_(options_.shares),
      plan_files_(&core_),
      events_(options_.node.own_uid) {}

absl::StatusOr<std::unique_ptr<Service>> Service::Start(
    ServiceOptions options) {
  auto service = std::unique_ptr<Service>(new Service(std::move(options)));
  SLUICE_RETURN_IF_ERROR(service->Prepare());
  return service;
}

absl::Status Service::Listen() {
  SLUICE_ASSIGN_OR_RETURN(
      listener_,
      SessionListener::Open(
          {.path = options_.socket,
           .mode = options_.socket_mode,
           .loop = loop_.get(),
           .closer = &closer_,
           .events = &events_,
           .accepted = [this](UniqueFd& socket) { return Connected(socket); }},
          std::move(options_.listener), *handover_));
  return absl::OkStatus();
}

absl::Status Service::Prepare() {
  SLUICE_ASSIGN_OR_RETURN(loop_, Loop::Make(options_.clock));
  if (options_.starter.watchdog) {
    heartbeat_ = *options_.starter.watchdog / 2;
    heartbeat_at_ = loop_->now() + heartbeat_;
  }
  SLUICE_ASSIGN_OR_RETURN(
      handover_,
      Handover::Start(
          std::move(options_.starter),
          [this](std::function<void()> task) { loop_->Post(std::move(task)); },
          [this](UniqueFd socket) {
            closer_.CloseSession(std::move(socket));
          }));
  leaving_ = handover_->was_left_anything();
  MakeSessions();
  SLUICE_RETURN_IF_ERROR(Listen());
  SLUICE_ASSIGN_OR_RETURN(signals_, OpenSignals());

  SLUICE_RETURN_IF_ERROR(core_.SetPolicy(options_.policy, loop_->now()));
  SLUICE_ASSIGN_OR_RETURN(grants_,
                          RankGrants::Start({.node = &options_.node,
                                             .quotas = &quotas_,
                                             .handover = handover_.get(),
                                             .clock = options_.clock},
                                            core_.config().links));
  MakeParts();
  SLUICE_ASSIGN_OR_RETURN(const bool goes_on, TakeOver());
  goes_on ? outside_->GoOn() : outside_->Start();
  events_.WriteNew(core_.log(), loop_->now());
  listener_->Start();
  if (options_.end_after_idle) {
    idle_end_.emplace(*options_.end_after_idle, loop_->now());
  }
  loop_->Add(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  loop_->SetWork([this] { return sessions_->TakeTurns(); });
  loop_->SetTimer([this] { return NextDeadline(); }, [this] { Expire(); });
  return absl::OkStatus();
}

void Service::MakeSessions() {
  sessions_ = std::make_unique<Sessions>(
      Sessions::Parts{.loop = loop_.get(),
                      .closer = &closer_,
                      .quotas = &quotas_,
                      .handover = handover_.get(),
                      .generation = options_.node.generation},
      Sessions::Handlers{
          .message = [this](SessionId id,
                            wire::Message& m) { OnMessage(id, m); },
          .ended =
              [this](SessionId id) {
                ReadCopies();
                Execute(core_.SocketEnded(id, loop_->now()));
              },
          .broken =
              [this](SessionId id, const std::string& why) {
                Execute(core_.ProtocolBroken(id, why, loop_->now()));
              },
          .gone = [this](SessionId id) { OnGone(id); }});
}

void Service::MakeParts() {
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
        Execute(core_.ExtentsMade(outcomes, loop_->now()));
      });
  outside_ = std::make_unique<OutsideWatch>(
      options_.driver, options_.node, loop_.get(), options_.clock,
      [this](HeldOutside held) {
        if (!held.pools.empty()) LookForHolders();
        Execute(core_.OutsideKnown(std::move(held), loop_->now()));
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
        Execute(core_.PlanSolved(round, std::move(plan), loop_->now(),
                                 std::move(units)));
      });
  profile_reader_ = std::make_unique<ProfileReader>(
      loop_.get(), codec_.get(), &quotas_,
      [this](SessionId session, RequestId request,
             absl::StatusOr<ProfileWithHash> profile) {
        Execute(core_.ProfileRead(session, request, std::move(profile),
                                  loop_->now()));
      });
}

Service::~Service() {
  if (leaving_ && sessions_) sessions_->Leave();
  // Threads that post to the loop end before what their tasks touch.
  snapshots_.reset();
  codec_.reset();
  solver_.reset();
  profile_reader_.reset();
  outside_.reset();
  extents_.reset();
  handover_.reset();
  arena_.reset();
  grants_.reset();
  RemoveSocket();
}

bool Service::Finish(absl::Duration patience) {
  const absl::Time deadline = options_.clock->Now() + patience;
  const auto left = [&] { return deadline - options_.clock->Now(); };
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
  SLUICE_RETURN_IF_ERROR(MayAttach(who));
  const SessionId id(next_session_++);
  sessions_->Watch(id, who, std::move(socket), std::move(identity.pidfd));
  Execute(core_.Connect(id, identity.peer, loop_->now()));
  return absl::OkStatus();
}

absl::Status Service::MayAttach(const Principal& principal) {
  if (closer_.waiting_of(principal) > Closer::kMostOfAUser) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} sent more than {} file descriptors that take long to close: "
        "wait until they are closed",
        Name(principal), Closer::kMostOfAUser));
  }
  return quotas_.Ask(principal, Resource::kSessions);
}

void Service::RemoveSocket() {
  if (listener_ && !leaving_) listener_->Remove();
}

void Service::OnMessage(SessionId id, wire::Message& message) {
  const RequestId request(message.packet.id());
  if (message.lost_fds && message.packet.has_request()) {
    return sessions_->Send(
        id,
        {ErrorPacket(request, ShortOf(Shortage::kOpenFiles,
                                      "sluiced has as many files open as it "
                                      "may: ask again, or raise its "
                                      "LimitNOFILE")),
         {}});
  }
  absl::Status checked = wire::CheckRequest(message);
  absl::StatusOr<Request> body =
      checked.ok() ? ToRequest(message.packet.request()) : checked;
  if (!body.ok()) {
    // Not a request at all: nothing to answer. A request with a bad field is
    // refused, and the session goes on.
    if (!message.packet.has_request() || request == RequestId()) {
      return Execute(core_.ProtocolBroken(
          id, std::string(body.status().message()), loop_->now()));
    }
    return sessions_->Send(id, {ErrorPacket(request, body.status()), {}});
  }
  if (const absl::Status may = MayAsk(id, *body, message.fds); !may.ok()) {
    return sessions_->Send(id, {ErrorPacket(request, may), {}});
  }
  const auto key = std::make_pair(id, request);
  const bool profile = std::holds_alternative<ProfileRequest>(*body);
  // The only descriptor kept of a client is one that cannot block.
  if (profile) {
    const absl::Status memfd = wire::CheckMemfd(message.fds.front());
    if (!memfd.ok())
      return sessions_->Send(id, {ErrorPacket(request, memfd), {}});
  }
  // A repeated request must not replace the one that is being read.
  const bool stored =
      profile &&
      profiles_.try_emplace(key, std::move(message.fds.front())).second;
  core_.Acknowledge(id, RequestId(message.packet.request().answered_up_to()));
  Effects effects = core_.Receive(id, request, *body, loop_->now());
  Execute(std::move(effects));
  if (!stored) return;
  auto kept = profiles_.extract(key);
  // Policy did not take it: 64 MiB of pages are not freed on the loop.
  if (kept.mapped()) message.fds.front() = std::move(kept.mapped());
}

absl::Status Service::MayAsk(SessionId id, Request& request,
                             std::span<const UniqueFd> shown) {
  // A repeated one is answered again: it was counted when it was granted.
  const auto is_new = [&] {
    const Session* const session = core_.session(id);
    return session != nullptr && session->state == Session::State::kHalfOpen;
  };
  if (auto* hello = std::get_if<HelloRequest>(&request);
      hello && !hello->observer && is_new()) {
    const Principal& who = sessions_->Find(id)->who();
    const absl::Status may = quotas_.May(who, Resource::kRanks);
    if (!may.ok()) {
      quotas_.CountRefusal(Resource::kRanks);
      return may;
    }
    SLUICE_RETURN_IF_ERROR(MayBeKept(who));
    SLUICE_RETURN_IF_ERROR(core_.CheckGpu(hello->gpu));
    GpuAccess::Gpus gpus = options_.gpus.Shown(shown);
    SLUICE_RETURN_IF_ERROR(options_.gpus.May(gpus, hello->gpu.value()));
    gpus_[id].merge(gpus);  // also of a Hello that policy refuses
    for (uint64_t gpu : gpus_[id]) hello->shown.insert(DeviceIndex(gpu));
  }
  if (const auto* lease = std::get_if<LeaseRequest>(&request);
      lease && lease->pool.kind == PoolKind::kGpu) {
    const auto shows = gpus_.find(id);
    // Before its Hello it leases nothing anyway.
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
  if (session->was_rank()) AddGonePeers(*session, gone);
  Execute(core_.ProcessesGone(gone, loop_->now()));
}

// A job is often killed as a whole.
void Service::AddGonePeers(const Session& session,
                           std::vector<Core::Gone>& gone) const {
  std::vector<pollfd> processes;
  std::vector<SessionId> peers;
  const JobKey job = session.job();
  for (const auto& [id, channel] : sessions_->channels()) {
    const Session* const peer = core_.session(id);
    if (peer == nullptr || peer->id == session.id || !peer->was_rank() ||
        peer->job() != job) {
      continue;
    }
    processes.push_back(
        {.fd = channel->pidfd(), .events = POLLIN, .revents = 0});
    peers.push_back(id);
  }
  if (poll(processes.data(), processes.size(), /*timeout=*/0) <= 0) return;
  for (size_t i = 0; i < peers.size(); ++i) {
    if ((processes[i].revents & POLLIN) == 0) continue;
    gone.push_back(
        {peers[i], ReadExit(processes[i].fd, core_.session(peers[i])->peer)});
  }
}

absl::Time Service::NextDeadline() {
  absl::Time next = std::min(core_.NextDeadline(), snapshots_->deadline());
  if (idle_end_) {
    next = std::min(next, idle_end_->At(core_.ranks() > 0, loop_->now()));
  }
  next = std::min({next, sessions_->deadline(), heartbeat_at_, end_at_});
  if (core_.ledger().IdleHost() > Bytes(0)) next = std::min(next, memory_at_);
  next = std::min({next, solver_->NextDeadline(), reload_->deadline(),
                   handover_->deadline(), listener_->deadline(),
                   plan_files_.deadline()});
  return next;
}

void Service::Expire() {
  const absl::Time now = loop_->now();
  if (end_at_ <= now) return loop_->Stop();
  if (idle_end_ && idle_end_->At(core_.ranks() > 0, now) <= now) {
    idle_end_.reset();
    WriteLog(LogLevel::kInfo, "no rank uses it any more");
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
  listener_->Expire(now);
  reload_->Expire(now);
  snapshots_->Expire();
  plan_files_.Expire(now);
  sessions_->Expire();
  solver_->Expire();
  Execute(core_.Tick(now));
}

}  // namespace sluice::daemon
