// Sessions: connect, end of the socket, end of the process.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/core.h"
#include "proto/base/grant_page.h"
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

std::string Describe(const Session& session) {
  if (session.state == Session::State::kHalfOpen) {
    return fmt::format("process {}", session.peer.pid);
  }
  if (session.hello.observer) {
    return fmt::format("observer, process {}", session.peer.pid);
  }
  return fmt::format("rank {} of job {}, process {}",
                     session.hello.rank.value(), session.hello.job,
                     session.peer.pid);
}

}  // namespace

Effects Core::Connect(SessionId id, const Peer& peer, absl::Time now) {
  SLUICE_CHECK(!sessions_.contains(id));
  Effects effects;
  // The oldest one goes of whoever has too many, or has most of too many: a
  // flood pushes out its own.
  struct HalfOpen {
    int count = 0;
    Session* oldest = nullptr;
  };
  std::map<Principal, HalfOpen> half_open;
  int all = 0;
  for (auto& [other_id, other] : sessions_) {
    if (other.state != Session::State::kHalfOpen) continue;
    HalfOpen& of = half_open[other.peer.principal];
    if (of.count++ == 0 || other.connected_at < of.oldest->connected_at) {
      of.oldest = &other;
    }
    ++all;
  }
  const bool full = std::ssize(sessions_) >= config_.max_sessions;
  Session* oldest = nullptr;
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
    Close(*oldest, now, effects);
    Drop(oldest->id, effects);
    ++stats_.sessions_refused;
  } else if (full) {
    ++stats_.sessions_refused;
    effects.push_back(CloseSocket{id});
    effects.push_back(Forget{id});
    return effects;
  }
  Session session;
  session.id = id;
  session.peer = peer;
  session.principal = Intern(peer.principal);
  session.connected_at = now;
  sessions_.emplace(id, std::move(session));
  ++stats_.sessions_opened;
  return effects;
}

PrincipalId Core::Intern(const Principal& principal) {
  KnownPrincipal& known = principals_[principal];
  if (known.id == PrincipalId()) known.id = PrincipalId(next_principal_++);
  ++known.sessions;
  return known.id;
}

void Core::ForgetPrincipals() {
  std::erase_if(principals_, [&](const auto& entry) {
    const KnownPrincipal& known = entry.second;
    return known.sessions == 0 &&
           std::none_of(pools_.begin(), pools_.end(), [&](const auto& pool) {
             return pool.second.Has(known.id);
           });
  });
}

JobKey Core::KeyOf(const Session& session) const {
  return {session.peer.principal, session.hello.job};
}

std::vector<Session*> Core::RanksOf(const JobKey& job) {
  std::vector<Session*> ranks;
  for (auto& [id, session] : sessions_) {
    if (session.is_rank() && KeyOf(session) == job) ranks.push_back(&session);
  }
  return ranks;
}

Effects Core::SocketEnded(SessionId id, absl::Time now) {
  Effects effects;
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return effects;
  Session& session = found->second;
  if (session.state == Session::State::kClosed) return effects;
  Close(session, now, effects);
  Tidy(id, effects);
  Settle(now, effects);
  return effects;
}

void Core::Tidy(SessionId id, Effects& effects) {
  Session& session = sessions_.at(id);
  // Half-open ones and observers never had a lease.
  if (session.grant_slot < 0) return Drop(id, effects);
  std::vector<SessionId> older;
  for (const auto& [other_id, other] : sessions_) {
    if (other_id != id && other.state == Session::State::kClosed &&
        other.peer.pid == session.peer.pid &&
        other.peer.start_ticks == session.peer.start_ticks &&
        other.quarantined_gpu == Bytes(0) &&
        other.quarantined_host == Bytes(0)) {
      older.push_back(other_id);
    }
  }
  for (SessionId other : older) {
    for (auto& [pool_id, pool] : pools_) pool.TransferHolds(other, id);
    Drop(other, effects);
  }
}

// Ends the socket's life: leases end, what the process may still map goes to
// quarantine. The session stays until its process is gone.
void Core::Close(Session& session, absl::Time now, Effects& effects) {
  SLUICE_CHECK(session.state != Session::State::kClosed);
  effects.push_back(CloseSocket{session.id});
  const bool was_rank = session.is_rank();
  session.had_leases_at_close = !session.leases.empty();
  std::erase_if(waiting_leases_, [&](const WaitingLease& lease) {
    return lease.session == session.id;
  });
  while (!session.leases.empty()) {
    EndLease(*session.leases.begin(), /*quarantine=*/true, session);
  }
  if (was_rank) {
    AbandonPlans(session, now, effects);
    effects.push_back(DetachGrants{session.grant_slot});
    slots_[session.grant_slot] = false;
    Log(now, EventKind::kDetach, Describe(session) + " closed its session",
        session.peer.principal);
  }
  session.state = Session::State::kClosed;
  if (was_rank) {
    const JobKey job = KeyOf(session);
    if (RanksOf(job).empty()) rounds_.JobEnded(job);
  }
}

void Core::AbandonPlans(const Session& session, absl::Time now,
                        Effects& effects) {
  const JobKey job = KeyOf(session);
  auto abandoned = rounds_.RankLeft(job, session.hello.rank);
  for (PlanRoundId round : abandoned.solving) {
    effects.push_back(StopSolving{round});
  }
  // Ranks whose plan is made but waits have no more of it than the others.
  if (const auto held = held_.find(job); held != held_.end()) {
    for (const auto& [rank, read] : held->second.asking.profiles) {
      if (rank != session.hello.rank) abandoned.ranks.push_back(rank);
    }
  }
  for (const Asking& asking : joining_) {
    if (asking.job != job) continue;
    for (const auto& [rank, read] : asking.profiles) {
      if (rank != session.hello.rank) abandoned.ranks.push_back(rank);
    }
  }
  FailPlan(job, abandoned.ranks,
           {fmt::format("rank {} of job {} left before the plan was made",
                        session.hello.rank.value(), job.name)},
           effects);
  joining_.insert(joining_.begin(),
                  std::make_move_iterator(abandoned.again.begin()),
                  std::make_move_iterator(abandoned.again.end()));
  LeaveTogether(job, now);
}

void Core::Drop(SessionId id, Effects& effects) {
  Session& session = sessions_.at(id);
  SLUICE_CHECK(session.state == Session::State::kClosed);
  for (auto& [pool_id, pool] : pools_) pool.HolderGone(id);
  const auto refund = [&](PoolKind kind, Bytes bytes) {
    if (bytes > Bytes(0)) {
      budgets_.Refund(KeyOf(session), kind, bytes);
    }
  };
  refund(PoolKind::kGpu, session.quarantined_gpu);
  refund(PoolKind::kHost, session.quarantined_host);
  memory_came_back_ |= session.quarantined_host > Bytes(0);
  const JobKey job = KeyOf(session);
  const bool last = --principals_.at(job.principal).sessions == 0;
  sessions_.erase(id);
  if (last) ForgetPrincipals();
  const bool job_lives =
      std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
        return entry.second.state != Session::State::kHalfOpen &&
               KeyOf(entry.second) == job;
      });
  if (!job_lives) stats_.jobs.erase(job);
  effects.push_back(Forget{id});
}

Effects Core::ProcessGone(SessionId id, Exit exit, absl::Time now) {
  Effects effects;
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return effects;
  Session& session = found->second;
  const bool was_open = session.state != Session::State::kClosed;
  if (was_open) Close(session, now, effects);
  // A rank that freed what it had and ended well has not died. Where the
  // kernel does not tell the status, leases that were left say so.
  const bool clean =
      exit.kind == Exit::Kind::kStatus
          ? exit.code == 0
          : exit.kind == Exit::Kind::kUnknown && !session.had_leases_at_close;
  const bool rank = session.grant_slot >= 0;
  if (rank && !clean) {
    ++stats_.client_deaths[DeathBy(exit)];
    TellPeers(session, Describe(exit), effects);
    Log(now, EventKind::kDeath,
        fmt::format("{}: {}", Describe(session), Describe(exit)),
        session.peer.principal);
  }
  Drop(id, effects);
  Settle(now, effects);
  return effects;
}

void Core::TellPeers(const Session& session, const std::string& reason,
                     Effects& effects) {
  for (const Session* peer : RanksOf(KeyOf(session))) {
    effects.push_back(SendNotice{
        peer->id,
        PeerDiedNotice{session.hello.job, session.hello.rank, reason}});
  }
}

Effects Core::ProtocolBroken(SessionId id, const std::string& reason,
                             absl::Time now) {
  Effects effects;
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return effects;
  Session& session = found->second;
  if (session.state == Session::State::kClosed) return effects;
  Log(now, EventKind::kProtocol,
      fmt::format("{}: {}; its session is ended", Describe(session), reason),
      session.peer.principal);
  if (session.is_rank()) {
    ++stats_.client_deaths[Death::kProtocol];
    TellPeers(session, "its session was ended: " + reason, effects);
  }
  Close(session, now, effects);
  Tidy(id, effects);
  Settle(now, effects);
  return effects;
}

Core::Evicted Core::Evict(const std::string& job, std::optional<uint32_t> uid,
                          bool kill, const std::string& reason,
                          absl::Time now) {
  Evicted evicted;
  for (auto& [id, session] : sessions_) {
    if (session.grant_slot < 0 || session.hello.job != job) continue;
    if (uid.has_value() && session.peer.principal.uid != *uid) continue;
    const bool open = session.state == Session::State::kAttached;
    if (open) {
      ++evicted.sessions;
      ++stats_.client_deaths[Death::kEvicted];
      evicted.effects.push_back(SendNotice{id, EvictedNotice{reason}});
      Log(now, EventKind::kEvict,
          fmt::format("{}: {}", Describe(session), reason),
          session.peer.principal);
      Close(session, now, evicted.effects);
    }
    if (kill) evicted.effects.push_back(KillProcess{id});
  }
  Settle(now, evicted.effects);
  return evicted;
}

Effects Core::ShutDown(const std::string& reason, absl::Time now) {
  Effects effects;
  for (auto& [id, session] : sessions_) {
    if (session.state == Session::State::kAttached) {
      effects.push_back(SendNotice{id, ShuttingDownNotice{reason}});
    }
  }
  Log(now, EventKind::kStop, reason, {});
  return effects;
}

Effects Core::Tick(absl::Time now) {
  Effects effects;
  std::vector<SessionId> late;
  for (const auto& [id, session] : sessions_) {
    if (session.state == Session::State::kHalfOpen &&
        session.connected_at + config_.hello_timeout <= now) {
      late.push_back(id);
    }
  }
  for (SessionId id : late) {
    Close(sessions_.at(id), now, effects);
    Drop(id, effects);
    ++stats_.sessions_refused;
  }
  for (PlanRoundId round : rounds_.Overdue(now)) {
    effects.push_back(StopSolving{round});
    Effects failed = PlanSolved(
        round,
        absl::DeadlineExceededError(fmt::format(
            "no plan within {} s: raise time_limit_s in [worker], or use "
            "larger chunks",
            absl::ToDoubleSeconds(config_.plan_time_limit))),
        now);
    effects.insert(effects.end(), failed.begin(), failed.end());
  }
  Settle(now, effects);
  return effects;
}

absl::Time Core::NextDeadline() const {
  absl::Time next = rounds_.NextDeadline();
  // While a question is being solved for all, its answer starts the next.
  if (!rounds_.solving_together()) next = std::min(next, replan_at_);
  for (const auto& [job, held] : held_) next = std::min(next, held.deadline);
  for (const WaitingLease& lease : waiting_leases_) {
    next = std::min(next, lease.deadline);
  }
  for (const auto& [job, member] : members_) {
    if (member.change) next = std::min(next, member.change->deadline);
  }
  for (const auto& [id, session] : sessions_) {
    if (session.state == Session::State::kHalfOpen) {
      next = std::min(next, session.connected_at + config_.hello_timeout);
    }
  }
  return next;
}

}  // namespace sluice::daemon
