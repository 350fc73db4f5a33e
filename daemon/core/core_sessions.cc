// Sessions: connect, end of the socket, end of the process.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

std::string Describe(Exit exit) {
  switch (exit.kind) {
    case Exit::Kind::kSignal:
      return fmt::format("killed by signal {}", exit.code);
    case Exit::Kind::kStatus:
      return fmt::format("ended with status {}", exit.code);
    case Exit::Kind::kUnknown:
      break;
  }
  return "its process ended";
}

Death DeathBy(Exit exit) {
  switch (exit.kind) {
    case Exit::Kind::kSignal:
      return Death::kSignal;
    case Exit::Kind::kStatus:
      return Death::kStatus;
    case Exit::Kind::kUnknown:
      break;
  }
  return Death::kUnknown;
}

}  // namespace

Effects Core::Connect(SessionId id, const Peer& peer, absl::Time now) {
  SLUICE_CHECK(!sessions_.contains(id));
  last_session_ = std::max(last_session_, id);
  Effects effects;
  // The oldest half-open session of the principal with too many is ended, or of
  // the one with the most if there are too many in all: a flood ends its own.
  struct HalfOpen {
    int count = 0;
    const Session* oldest = nullptr;
  };
  std::map<Principal, HalfOpen> half_open;
  int all = 0;
  for (SessionId other_id : half_open_) {
    const Session& other = sessions_.at(other_id);
    HalfOpen& of = half_open[other.peer.principal];
    if (of.count++ == 0 || other.connected_at < of.oldest->connected_at) {
      of.oldest = &other;
    }
    ++all;
  }
  const bool full = std::ssize(sessions_) >= config_.max_sessions;
  const Session* oldest = nullptr;
  if (const HalfOpen& own = half_open[peer.principal];
      own.count >= config_.max_half_open_each) {
    oldest = own.oldest;
  } else if (full || all >= config_.max_half_open) {
    oldest = std::max_element(half_open.begin(), half_open.end(),
                              [](const auto& a, const auto& b) {
                                return a.second.count < b.second.count;
                              })
                 ->second.oldest;
  }
  if (oldest) {
    const SessionId gone = oldest->id;
    Close(sessions_.Edit(gone), now, effects);
    Drop(gone, now, effects);
    ++journal_.stats.sessions_refused;
  } else if (full) {
    ++journal_.stats.sessions_refused;
    effects.push_back(CloseSocket{id});
    effects.push_back(Forget{id});
    return effects;
  }
  Session session;
  session.id = id;
  session.peer = peer;
  session.connected_at = now;
  sessions_.Insert(id, std::move(session));
  half_open_.insert(id);
  ++journal_.stats.sessions_opened;
  return effects;
}

Effects Core::SocketEnded(SessionId id, absl::Time now) {
  Effects effects;
  Session* found = sessions_.Find(id);
  if (found == nullptr) return effects;
  Session& session = *found;
  if (session.state == Session::State::kClosed) return effects;
  Close(session, now, effects);
  Tidy(id, now, effects);
  Settle(now, effects);
  return effects;
}

void Core::Tidy(SessionId id, absl::Time now, Effects& effects) {
  const Session& session = sessions_.at(id);
  // Half-open ones and observers never had a lease.
  if (session.grant_slot < 0) return Drop(id, now, effects);
  std::vector<SessionId> older;
  for (const auto& [other_id, other] : sessions_) {
    if (other_id != id && other.grant_slot >= 0 &&
        other.state == Session::State::kClosed &&
        other.peer.pid == session.peer.pid &&
        other.peer.start_ticks == session.peer.start_ticks &&
        ledger_.HoldsNothing(other_id)) {
      older.push_back(other_id);
    }
  }
  for (SessionId other : older) {
    ledger_.Merge(other, id, now);
    Drop(other, now, effects);
  }
}

// Ends the socket's life: leases end, what the process may still map goes to
// quarantine. The session stays until its process is gone.
void Core::Close(Session& session, absl::Time now, Effects& effects) {
  SLUICE_CHECK(session.state != Session::State::kClosed);
  effects.push_back(CloseSocket{session.id});
  const bool was_rank = session.is_rank();
  if (was_rank) {
    const std::vector<RequestId> ended =
        ledger_.Close(session.id, now, effects);
    session.had_leases_at_close = !ended.empty();
    for (RequestId request : ended) session.history.LeaseEnded(request);
    journal_.stats.waits[WaitEnd::kSessionEnded] +=
        waiting_.SessionEnded(session.id);
    joint_.RankLeft(session.id, now, effects);
    effects.push_back(DetachGrants{session.grant_slot});
    slots_[session.grant_slot] = false;
    Log(now, EventKind::kDetach, session.Described() + " closed its session",
        session.peer.principal, {session.id});
  }
  session.state = Session::State::kClosed;
  half_open_.erase(session.id);
  session.history.Clear();
}

void Core::Drop(SessionId id, absl::Time now, Effects& effects) {
  const Session& session = sessions_.at(id);
  SLUICE_CHECK(session.state == Session::State::kClosed);
  ledger_.Gone(id, now, effects);
  const JobKey job = session.job();
  sessions_.erase(id);
  late_.erase(id);
  const bool job_lives =
      std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
        return entry.second.state != Session::State::kHalfOpen &&
               entry.second.job() == job;
      });
  if (!job_lives) journal_.stats.jobs.Ended(job, now);
  effects.push_back(Forget{id});
}

Effects Core::ProcessesGone(const std::vector<Gone>& gone, absl::Time now) {
  Effects effects;
  for (const Gone& each : gone) {
    Session* const session = sessions_.Find(each.session);
    if (session == nullptr) continue;
    if (session->state == Session::State::kClosed) continue;
    Close(*session, now, effects);
  }
  for (const Gone& each : gone) {
    if (!sessions_.contains(each.session)) continue;
    NoteExit(sessions_.at(each.session), each.exit, now, effects);
    Drop(each.session, now, effects);
  }
  Settle(now, effects);
  return effects;
}

// A rank that freed what it had and ended well has not died. Where the kernel
// does not tell the status, leases that were left say so.
void Core::NoteExit(const Session& session, const Exit& exit, absl::Time now,
                    Effects& effects) {
  const bool clean =
      exit.kind == Exit::Kind::kStatus
          ? exit.code == 0
          : exit.kind == Exit::Kind::kUnknown && !session.had_leases_at_close;
  if (!session.was_rank() || clean) return;
  ++journal_.stats.client_deaths[DeathBy(exit)];
  TellPeers(session, Describe(exit), effects);
  Log(now, EventKind::kDeath,
      fmt::format("{}: {}", session.Described(), Describe(exit)),
      session.peer.principal, {session.id});
}

void Core::TellPeers(const Session& session, const std::string& reason,
                     Effects& effects) {
  for (const auto& [id, peer] : sessions_) {
    if (!peer.is_rank() || peer.job() != session.job()) continue;
    effects.push_back(SendNotice{
        id, PeerDiedNotice{session.hello.job, session.hello.rank, reason}});
    sessions_.Edit(id).deaths_to_tell.push_back({session.hello.rank, reason});
    to_tell_.insert(id);
  }
}

Effects Core::ProtocolBroken(SessionId id, const std::string& reason,
                             absl::Time now) {
  Effects effects;
  Session* found = sessions_.Find(id);
  if (found == nullptr) return effects;
  Session& session = *found;
  if (session.state == Session::State::kClosed) return effects;
  Log(now, EventKind::kProtocol,
      fmt::format("{}: {}; its session is ended", session.Described(), reason),
      session.peer.principal, {session.id});
  if (session.is_rank()) {
    ++journal_.stats.client_deaths[Death::kProtocol];
    TellPeers(session, "its session was ended: " + reason, effects);
  }
  Close(session, now, effects);
  Tidy(id, now, effects);
  Settle(now, effects);
  return effects;
}

}  // namespace sluice::daemon
