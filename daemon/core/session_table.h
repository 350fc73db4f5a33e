// The sessions of the node: which are half-open, which have a slot for grants,
// and which deaths of ranks their peers may not have heard of yet.
//
// It keeps the states of session.h. What a state means for leases and plans is
// the caller's to do.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

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
#include "proto/base/table.h"

namespace sluice::daemon {

class SessionTable {
 public:
  // Both outlive it.
  SessionTable(const NodeConfig& config, Journal& journal);

  using Rows = Table<SessionId, Session>;
  const Rows& rows() const { return rows_; }
  Rows::const_iterator begin() const { return rows_.begin(); }
  Rows::const_iterator end() const { return rows_.end(); }
  // Null: there is none.
  const Session* Find(SessionId id) const {
    const auto found = rows_.find(id);
    return found != rows_.end() ? &found->second : nullptr;
  }
  // REQUIRES: it is there.
  const Session& at(SessionId id) const { return rows_.at(id); }
  Session& Edit(SessionId id) { return rows_.Edit(id); }
  // To be changed; null: its socket has ended, or there is none.
  Session* FindOpen(SessionId id);
  // A session may see this principal's jobs; null if it may see all, as the
  // daemon's user may if that is not root (root asks on the administrators'
  // socket).
  const Principal* ViewerOf(const Session& session) const;
  // InvalidArgument: there is no such GPU. Unavailable: it cannot be used.
  absl::Status CheckGpu(DeviceIndex gpu) const;
  // Attached ranks.
  int ranks() const;
  // Whether any session is, or was, a rank's.
  bool has_ranks() const;

  // --- states --------------------------------------------------------------
  bool full() const { return std::ssize(rows_) >= config_.max_sessions; }
  // The half-open session that ends when one more of this principal connects:
  // its oldest, if it has too many of these; if there are too many in all, the
  // oldest of the principal that has the most, so a flood ends its own.
  std::optional<SessionId> EndedByOneMore(const Principal& who) const;
  // REQUIRES: `id` is new.
  void Connect(SessionId id, const Peer& peer, absl::Time now);
  // Whether a rank may say this on this node, beside the others of its job.
  absl::Status MayAttach(const Session& session,
                         const HelloRequest& hello) const;
  // half-open -> attached. ResourceExhausted: no slot is left for a rank.
  absl::Status Attach(Session& session, const HelloRequest& hello,
                      absl::Time now);
  // -> closed.
  void Close(Session& session);
  // closed -> gone.
  void Drop(SessionId id, absl::Time now);
  // Closed sessions of ranks of the process that has `session`, but for it.
  std::vector<SessionId> ClosedBeside(const Session& session) const;
  // Half-open since too long ago.
  std::vector<SessionId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // --- what ranks were told ------------------------------------------------
  // These effects tell ranks of their plans.
  void NotePlansTold(const Effects& effects);
  // The process has ended. A rank that freed what it had and ended well has
  // not died; of any other its peers are told.
  void Exited(const Session& session, const Exit& exit, absl::Time now,
              Effects& effects);
  void TellPeers(const Session& session, const std::string& reason,
                 Effects& effects);
  // Tells the session again what it may not have heard.
  void TellAgain(const Session& session, Effects& effects) const;
  // What was told has been sent. False: there was nothing.
  bool NoticesSent();

  void Load(std::map<SessionId, Session> saved, absl::Time now);
  // Core::TakeChanged and Core::TouchAll.
  template <typename Visit>
  void TakeChanged(Visit visit);
  void TouchAll();

  void CheckInvariants() const;

 private:
  const NodeConfig& config_;
  Journal& journal_;
  Rows rows_;
  // The first is the oldest, which has the next deadline.
  std::set<SessionId> half_open_;
  std::vector<bool> slots_;
  std::set<SessionId> to_tell_;  // those that have deaths_to_tell
};

template <typename Visit>
void SessionTable::TakeChanged(Visit visit) {
  rows_.TakeChanged([&](SessionId id, Session* session) {
    // A session that is no rank yet is saved whole when it becomes one.
    if (session != nullptr && !session->was_rank()) return;
    visit(RowKind::kSession, id, session);
    if (session == nullptr) return;
    session->history.requests().TakeChanged(
        [&](RequestId request, const std::optional<Reply>* reply) {
          visit(RowKind::kReply, std::pair(id, request), reply);
        });
  });
}

}  // namespace sluice::daemon
