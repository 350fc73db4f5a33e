// The sessions of the node: which are half-open, which have a grant slot, and
// which deaths of ranks must still be sent to their peers. The table keeps the
// states of session.h; the caller handles leases and plans.
// Thread safety: one thread (core.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/session.h"
#include "daemon/core/state.h"
#include "proto/base/find.h"
#include "proto/base/table.h"

namespace sluice::daemon {

class SessionTable {
 public:
  // Both must outlive this object.
  SessionTable(const NodeConfig& config, Journal& journal)
      : config_(config), journal_(journal) {}

  using Rows = Table<SessionId, Session>;
  const Rows& rows() const { return rows_; }
  Rows::const_iterator begin() const { return rows_.begin(); }
  Rows::const_iterator end() const { return rows_.end(); }
  const Session* Find(SessionId id) const { return FindOrNull(rows_, id); }
  const Session& at(SessionId id) const { return rows_.at(id); }
  Session& Edit(SessionId id) { return rows_.Edit(id); }
  // Returns the session for changes; null if its socket has ended, or there is
  // no such session.
  Session* FindOpen(SessionId id) {
    Session* session = rows_.Find(id);
    const bool open = session && session->state != Session::State::kClosed;
    return open ? session : nullptr;
  }
  // Returns the principal to which a session's view is restricted; null if it
  // may see everything, as the daemon's user may. Root may not, since
  // containers share uid 0.
  const Principal* ViewerOf(const Session& session) const;
  // InvalidArgument: there is no such GPU. Unavailable: it cannot be used.
  absl::Status CheckGpu(DeviceIndex gpu) const;
  int ranks() const {  // attached ranks
    return static_cast<int>(std::ranges::count_if(
        rows(), [](const auto& each) { return each.second.is_rank(); }));
  }
  // Returns whether any session is, or was, a rank's.
  bool has_ranks() const {
    return std::ranges::any_of(
        rows(), [](const auto& each) { return each.second.was_rank(); });
  }

  // --- states
  bool full() const { return std::ssize(rows_) >= config_.max_sessions; }
  // Returns the half-open session that must end before this principal may
  // connect once more, if any: the principal's oldest if it has too many; if
  // there are too many in total, the oldest of the principal with the most.
  std::optional<SessionId> EndedByOneMore(const Principal& who) const;
  // REQUIRES: `id` is new.
  void Connect(SessionId id, const Peer& peer, absl::Time now) {
    rows_.Insert(id, {.id = id, .peer = peer, .connected_at = now});
    ++journal_.stats.sessions_opened;
    half_open_.insert(id);
  }
  // Checks a Hello against this node and the other ranks of its job.
  absl::Status MayAttach(const Session& session,
                         const HelloRequest& hello) const;
  // half-open -> attached. ResourceExhausted: no slot is free for a rank.
  absl::Status Attach(Session& session, const HelloRequest& hello,
                      absl::Time now);
  void Close(Session& session);
  // REQUIRES: the session is closed.
  void Drop(SessionId id, absl::Time now);
  // Returns the other, closed rank sessions of the same process.
  std::vector<SessionId> ClosedBeside(const Session& session) const;
  // Returns the sessions that were half-open for too long.
  std::vector<SessionId> Late(absl::Time now) const {
    std::vector<SessionId> late;
    for (SessionId id : half_open_) {
      if (at(id).connected_at + config_.hello_timeout > now) break;
      late.push_back(id);
    }
    return late;
  }
  absl::Time NextDeadline() const {
    return half_open_.empty()
               ? absl::InfiniteFuture()
               : at(*half_open_.begin()).connected_at + config_.hello_timeout;
  }

  // --- notices to ranks
  // Records the plans that these effects send to ranks.
  void NotePlansTold(const Effects& effects);
  // Sends a rank's death to its peers, unless the rank exited with status 0, or
  // had freed its leases and the status is unknown.
  void Exited(const Session& session, const Exit& exit, absl::Time now,
              Effects& effects);
  void TellPeers(const Session& session, const std::string& reason,
                 Effects& effects);
  // Repeats to the session the notices that it may have missed.
  void TellAgain(const Session& session, Effects& effects) const;
  // Implements Core::NoticesSent.
  bool NoticesSent() {
    for (SessionId id : to_tell_) {
      if (Session* told = rows_.Find(id)) told->deaths_to_tell.clear();
    }
    return !std::exchange(to_tell_, {}).empty();
  }

  void Load(std::map<SessionId, Session> saved, absl::Time now);
  void TakeChanged(auto visit) {
    rows_.TakeChanged([&](SessionId id, Session* session) {
      // Only sessions that are, or were, a rank's are saved.
      if (session != nullptr && !session->was_rank()) return;
      visit(RowKind::kSession, id, session);
      if (session == nullptr) return;
      session->history.requests().TakeChanged(
          [&](RequestId request, const std::optional<Reply>* reply) {
            visit(RowKind::kReply, std::pair(id, request), reply);
          });
    });
  }
  void TouchAll();

  void CheckInvariants() const;

 private:
  const NodeConfig& config_;
  Journal& journal_;
  Rows rows_;
  // The oldest session is first, and has the next deadline.
  std::set<SessionId> half_open_;
  std::set<SessionId> to_tell_;  // sessions that have deaths_to_tell
};

// Decides when a daemon with --end-after-idle ends.
class IdleEnd {
 public:
  // The wait for the first rank: the program that started the daemon may need
  // this long to load its libraries.
  static constexpr absl::Duration kFirst = absl::Minutes(1);

  IdleEnd(absl::Duration after, absl::Time start)
      : after_(after),
        unused_since_(start + std::max(absl::ZeroDuration(), kFirst - after)) {}

  // Returns when the daemon ends if it stays `used`, or unused, from `now` on.
  absl::Time At(bool used, absl::Time now) {
    if (used) {
      unused_since_.reset();
      return absl::InfiniteFuture();
    }
    if (!unused_since_) unused_since_ = now;
    return *unused_since_ + after_;
  }

 private:
  const absl::Duration after_;
  std::optional<absl::Time> unused_since_;
};

}  // namespace sluice::daemon
