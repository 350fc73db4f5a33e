#include "daemon/core/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/overloaded.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {

Core::Core(NodeConfig config, absl::Time now)
    : config_(std::move(config)), started_(now) {
  journal_.stats.gpus.resize(config_.gpus.size());
  for (const std::string& warning : config_.warnings) {
    journal_.Log(now, EventKind::kStart, warning, {config_.own_uid, ""});
  }
}

// --- connections

Effects Core::Connect(SessionId id, const Peer& peer, absl::Time now) {
  last_session_ = std::max(last_session_, id);
  Effects effects;
  if (const auto ended = sessions_.EndedByOneMore(peer.principal)) {
    Close(sessions_.Edit(*ended), now, effects);
    Drop(*ended, now, effects);
    ++journal_.stats.sessions_refused;
  } else if (sessions_.full()) {
    ++journal_.stats.sessions_refused;
    effects.push_back(CloseSocket{id});
    effects.push_back(Forget{id});
    return effects;
  }
  sessions_.Connect(id, peer, now);
  return effects;
}

Effects Core::ProtocolBroken(SessionId id, const std::string& reason,
                             absl::Time now) {
  Effects effects;
  Session* const session = sessions_.FindOpen(id);
  if (session == nullptr) return effects;
  journal_.LogOf(*session, now, EventKind::kProtocol,
                 fmt::format("{}: {}; its session is ended",
                             session->Described(), reason));
  if (session->is_rank()) {
    ++journal_.stats.client_deaths[Death::kProtocol];
    sessions_.TellPeers(*session, "its session was ended: " + reason, effects);
  }
  CloseAlone(*session, now, effects);
  return effects;
}

Effects Core::ProcessesGone(const std::vector<Gone>& gone, absl::Time now) {
  Effects effects;
  for (const Gone& each : gone) {
    if (Session* const session = sessions_.FindOpen(each.session)) {
      Close(*session, now, effects);
    }
  }
  for (const Gone& each : gone) {
    const Session* const session = sessions_.Find(each.session);
    if (session == nullptr) continue;
    sessions_.Exited(*session, each.exit, now, effects);
    Drop(each.session, now, effects);
  }
  Settle(now, effects);
  return effects;
}

void Core::CloseAlone(Session& session, absl::Time now, Effects& effects) {
  Close(session, now, effects);
  if (!session.was_rank()) {  // it never had a lease
    Drop(session.id, now, effects);
  } else {
    for (SessionId other : sessions_.ClosedBeside(session)) {
      if (!ledger_.HoldsNothing(other)) continue;
      ledger_.Merge(other, session.id, now);
      Drop(other, now, effects);
    }
  }
  Settle(now, effects);
}

void Core::Close(Session& session, absl::Time now, Effects& effects) {
  SLUICE_CHECK(session.state != Session::State::kClosed);
  effects.push_back(CloseSocket{session.id});
  if (session.is_rank()) {
    session.had_leases_at_close = ledger_.Close(session.id, now, effects);
    journal_.stats.waits[WaitEnd::kSessionEnded] +=
        line_.SessionEnded(session.id);
    joint_.RankLeft(session.id, now, effects);
    effects.push_back(DetachGrants{session.grant_slot});
    journal_.LogOf(session, now, EventKind::kDetach,
                   session.Described() + " closed its session");
  }
  sessions_.Close(session);
}

// --- requests

Effects Core::Receive(SessionId id, RequestId request, const Request& body,
                      absl::Time now) {
  Effects effects;
  Session* const session = sessions_.FindOpen(id);
  if (session == nullptr) return effects;
  switch (session->history.Begin(request)) {
    case RequestHistory::Seen::kRunning:
      break;  // a repeated request, which will be answered
    case RequestHistory::Seen::kAnswered:
      Repeat(*session, request, effects);
      break;
    case RequestHistory::Seen::kForgotten:
      effects.push_back(SendReply{
          id, request,
          absl::InvalidArgumentError(fmt::format(
              "request id {} was acknowledged, or is older than the last {} "
              "requests: ids count up",
              request.value(), RequestHistory::kWindow))});
      break;
    case RequestHistory::Seen::kNew:
      Dispatch(*session, request, body, now, effects);
      Settle(now, effects);
  }
  return effects;
}

// Answers a repeated request: the answer of an earlier daemon may be lost.
// Collected profiles are not saved. So a submitted profile without a plan is
// read again: the rank does not know that an earlier daemon's copy is lost.
void Core::Repeat(Session& session, RequestId request, Effects& effects) {
  const bool submitted =
      std::holds_alternative<SubmittedReply>(session.history.answer(request));
  const bool planned = joint_.FindPlan(session.told_plan, nullptr) != nullptr;
  if (submitted && !planned) {
    session.history.Reopen(request);
    effects.push_back(ReadProfile{session.id, request});
    return;
  }
  effects.push_back(
      SendReply{session.id, request, leases_.Repeat(session, request)});
  if (submitted) {
    effects.push_back(
        SendNotice{session.id, PlanReadyNotice{session.told_plan}});
  }
}

void Core::Dispatch(Session& session, RequestId request, const Request& body,
                    absl::Time now, Effects& effects) {
  const auto answer = [&](Reply reply) {
    session.Answer(request, std::move(reply), effects);
  };
  if (session.state == Session::State::kHalfOpen &&
      !std::holds_alternative<HelloRequest>(body)) {
    return answer(absl::FailedPreconditionError("a session begins with Hello"));
  }
  // Refuses the request of an observer; `what` ends the message.
  const auto refused = [&](const char* what) {
    if (session.is_rank()) return false;
    answer(absl::FailedPreconditionError(
        fmt::format("an observer's session {}", what)));
    return true;
  };
  const Overloaded handle = {
      [&](const HelloRequest& hello) {
        Attach(session, request, hello, now, effects);
      },
      [&](const LeaseRequest& asked) {
        leases_.Ask(session, request, asked, now, effects);
      },
      [&](const FreeRequest& asked) {
        leases_.Free(session, request, asked, now, effects);
      },
      [&](const GiveUpRequest& given_up) {
        leases_.GiveUp(session, request, given_up, now, effects);
      },
      [&](const ProfileRequest&) {
        if (refused("has no plans: attach as a rank")) return;
        effects.push_back(ReadProfile{session.id, request});
      },
      [&](const PlanTakenRequest& taken) {
        answer(NotedReply{});
        if (!session.is_rank()) return;
        joint_.PlanTaken(session.id, taken, now);
      },
      [&](const StepReportRequest& report) {
        if (refused("reports no steps")) return;
        joint_.StepReported(session.id);
        copies_.Reported(session, report, now);
        answer(NotedReply{});
      },
      [&](const GpuUseRequest& use) {
        if (refused("has no GPU: attach as a rank")) return;
        outside_.Told(session, use, now);
        answer(NotedReply{.room = session.gpu()});
      },
      [&](const QueryRequest& query) {
        // Another principal's plan gets the same answer as one that
        // does not exist.
        if (query.plan == PlanId() ||
            joint_.FindPlan(query.plan, sessions_.ViewerOf(session))) {
          return answer(SnapshotReply{query.plan});
        }
        answer(absl::NotFoundError(fmt::format(
            "no plan {}: sluicectl status lists them", query.plan.value())));
      }};
  std::visit(handle, body);
}

void Core::Attach(Session& session, RequestId request,
                  const HelloRequest& hello, absl::Time now, Effects& effects) {
  absl::Status may;
  if (session.state != Session::State::kHalfOpen) {
    may = absl::FailedPreconditionError(
        "this session has said Hello already: open another one");
  } else if (!hello.observer) {
    may = policy_.CheckDrain();
    if (may.ok()) may = sessions_.MayAttach(session, hello);
  }
  if (may.ok()) may = sessions_.Attach(session, hello, now);
  if (!may.ok()) return session.Answer(request, std::move(may), effects);
  if (session.is_rank()) {
    journal_.LogOf(
        session, now, EventKind::kAttach,
        fmt::format("{}, on GPU {}", session.Described(), hello.gpu.value()),
        request);
    effects.push_back(AttachGrants{session.id, session.grant_slot, hello.gpu,
                                   config_.WeightOf(session.peer.principal)});
    ledger_.Open(session.id, session.job());
    joint_.RankAttached(
        session.id, {session.job(), hello.rank, hello.gpu, hello.local_ranks});
  }
  session.Answer(request,
                 WelcomeReply{.observer = hello.observer,
                              .grant_slot = session.grant_slot,
                              .gpu = hello.gpu,
                              .protocol = hello.protocol},
                 effects);
}

// --- outcomes of effects

Effects Core::HoldersKnown(const std::vector<HolderAnswer>& answers,
                           absl::Time now) {
  Bytes came_back;
  for (const HolderAnswer& answer : answers) {
    came_back += ledger_.HolderKnown(answer.extent, answer.held, now);
  }
  return CameBack(came_back, now);
}

Effects Core::ProfileRead(SessionId id, RequestId request,
                          absl::StatusOr<ProfileWithHash> read,
                          absl::Time now) {
  Effects effects;
  Session* const session = sessions_.FindOpen(id);
  if (session == nullptr || !session->is_rank()) return effects;
  absl::Status may =
      read.ok() ? joint_.MaySubmit(id, *read->profile) : read.status();
  if (!may.ok()) {
    const bool too_large = read.ok() && absl::IsResourceExhausted(may);
    if (too_large) ++journal_.stats.profiles_refused;
    session->Answer(request, std::move(may), effects);
    return effects;
  }
  const int waiting = joint_.Submit(id, *std::move(read));
  session->told_plan = PlanId();
  session->Answer(request, SubmittedReply{waiting}, effects);
  if (waiting == 0) joint_.Ask(session->job(), now, effects);
  Settle(now, effects);
  return effects;
}

// --- time

Effects Core::Tick(absl::Time now) {
  Effects effects;
  for (SessionId id : sessions_.Late(now)) {
    Close(sessions_.Edit(id), now, effects);
    Drop(id, now, effects);
    ++journal_.stats.sessions_refused;
  }
  ledger_.AskAgain(now, effects);
  ledger_.Trim(now, effects);
  for (PlanRoundId round : joint_.Overdue(now)) {
    effects.push_back(StopSolving{round});
    joint_.PlanSolved(
        round,
        absl::DeadlineExceededError(fmt::format(
            "no plan within {} s: raise time_limit_s in [worker], or use "
            "larger chunks",
            absl::ToDoubleSeconds(config_.plan_time_limit))),
        {}, now, effects);
    Settle(now, effects);
  }
  Settle(now, effects);
  return effects;
}

// --- administration

absl::StatusOr<Effects> Core::Apply(const PolicyChange& change,
                                    absl::Time now) {
  SLUICE_RETURN_IF_ERROR(policy_.Apply(change, now));
  return Run(now, [&](Effects&) { line_.WakeAll(); });
}

Core::Evicted Core::Evict(const std::string& job, std::optional<uint32_t> uid,
                          bool kill, const std::string& reason,
                          absl::Time now) {
  Evicted evicted;
  const std::string said = Printable(reason);
  std::set<std::pair<int, uint64_t>> killed;
  for (const auto& [id, session] : sessions_) {
    const Peer& peer = session.peer;
    if (!session.was_rank() || session.hello.job != job ||
        uid.value_or(peer.principal.uid) != peer.principal.uid) {
      continue;
    }
    if (session.is_rank()) {
      ++evicted.sessions;
      ++journal_.stats.client_deaths[Death::kEvicted];
      evicted.effects.push_back(SendNotice{id, EvictedNotice{said}});
      journal_.LogOf(session, now, EventKind::kEvict,
                     fmt::format("{}: {}", session.Described(), said));
      Close(sessions_.Edit(id), now, evicted.effects);
    }
    if (!kill) continue;
    evicted.effects.push_back(KillProcess{id});
    killed.emplace(peer.pid, peer.start_ticks);
  }
  evicted.processes = static_cast<int>(killed.size());
  Settle(now, evicted.effects);
  return evicted;
}

Effects Core::ShutDown(const std::string& reason, absl::Time now) {
  Effects effects;
  for (const auto& [id, session] : sessions_) {
    if (session.state == Session::State::kAttached) {
      effects.push_back(SendNotice{id, ShuttingDownNotice{reason}});
    }
  }
  journal_.Log(now, EventKind::kStop, reason, {});
  return effects;
}

// --- what is saved

void Core::Load(CoreState saved) {
  ledger_.Load(saved.ledger);
  joint_.Load(std::move(saved.joint));
  sessions_.Load(std::move(saved.sessions), started_);
  last_session_ = saved.last_session;
  policy_.Load(std::move(saved.drain));
  line_.Load(std::move(saved.waiting));
  copies_.Load();
}

Effects Core::TakeOver(const std::set<SessionId>& reached, absl::Time now) {
  Effects effects;
  ledger_.TakeOver(now, effects);
  std::map<SessionId, std::set<RequestId>> worked_on = ledger_.Asking();
  for (const auto& [place, waiter] : line_.waiters()) {
    worked_on[waiter.session].insert(waiter.request);
  }
  std::vector<SessionId> lost;
  for (const auto& [id, session] : sessions_) {
    if (session.state == Session::State::kClosed) continue;
    if (!reached.contains(id)) {
      lost.push_back(id);
      continue;
    }
    sessions_.Edit(id).history.ForgetRunning(worked_on[id]);
    const bool kept = joint_.FindPlan(session.told_plan, nullptr) != nullptr;
    effects.push_back(
        SendNotice{id, TakenOverNotice{kept ? session.told_plan : PlanId()}});
    sessions_.TellAgain(session, effects);
  }
  const bool replanned = joint_.TakeOver(now, effects);
  copies_.TakeOver(replanned, now, effects);
  journal_.Log(now, EventKind::kStart,
               fmt::format("took over {} session{} from a daemon that ended",
                           reached.size(), reached.size() == 1 ? "" : "s"),
               {config_.own_uid, ""});
  leases_.NameHeldOfFaulty(now);
  for (SessionId id : lost) CloseAlone(sessions_.Edit(id), now, effects);
  Settle(now, effects);
  return effects;
}

LooseState Core::Loose() const {
  LooseState loose;
  loose.last_session = last_session_;
  ledger_.AddLoose(loose);
  joint_.AddLoose(loose);
  loose.next_place = line_.next();
  loose.gpus = NamesOfGpus();
  return loose;
}

GpuNames Core::NamesOfGpus() const {
  GpuNames names;
  for (const GpuConfig& gpu : config_.gpus) {
    if (gpu.uuid.empty()) continue;
    names[{PoolKind::kGpu, gpu.index.value()}] = gpu.uuid;
  }
  return names;
}

void Core::CheckInvariants() const {
  ledger_.CheckInvariants();
  joint_.CheckInvariants();
  sessions_.CheckInvariants();
  leases_.CheckInvariants();
  // A session is a holder if it is, or was, a rank's.
  for (const auto& [id, session] : sessions_) {
    SLUICE_CHECK(ledger_.IsHolder(id) == session.was_rank());
  }
}

}  // namespace sluice::daemon
