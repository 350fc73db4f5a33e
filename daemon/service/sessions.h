// The sockets and processes of all sessions on the loop.
//
// Requests are read in turns of principals, not of connections (quota/turns.h).
//
// Thread safety: loop's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/quota/quotas.h"
#include "daemon/quota/turns.h"
#include "daemon/service/convert.h"
#include "daemon/service/in_flight.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/threads/closer.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/ids.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::daemon {

// The socket and the pidfd of one session on the loop.
//
// Sends never block: packets wait in a queue, and until it is empty the daemon
// reads no requests from the peer. A client that never reads costs one queue of
// replies, and is dropped after kStallLimit. A packet with descriptors also
// waits until it may be in flight (in_flight.h); no client is dropped if others
// use up that limit.
class Channel {
 public:
  static constexpr absl::Duration kStallLimit = absl::Seconds(5);
  // In packets. Limits notices; a peer's requests limit its replies.
  static constexpr size_t kMaxQueued = 4096;

  // Handlers may destroy the channel only through Post.
  struct Handlers {
    // Handles a packet. The channel closes descriptors that are not moved out.
    std::function<void(SessionId, wire::Message&)> message;
    std::function<void(SessionId)> ended;  // the peer closed its socket
    // The peer broke the protocol, or did not read for kStallLimit.
    std::function<void(SessionId, const std::string& why)> broken;
    std::function<void(SessionId)> gone;  // the peer's process ended
  };
  // The channels' common parts; must outlive them.
  struct Shared {
    Loop* loop;
    Closer* closer;
    Quotas* quotas;
    Handlers handlers;
    InFlight in_flight = InFlight(quotas);
    Turns turns = {};  // of sessions with something to read
    // Channels with a queue; only these have a deadline.
    std::set<const Channel*> queued = {};
  };

  // `socket` is empty if only the process is watched.
  Channel(Shared* shared, SessionId id, Principal who, UniqueFd socket,
          UniqueFd pidfd);
  ~Channel();
  Channel(const Channel&) = delete;

  // Reads at most one packet. Returns whether there may be more. If not, the
  // channel queues for a turn when the next packet arrives.
  bool ReadOne();
  void Send(Outgoing out);
  // Queues all packets until Release, without a stall limit.
  void Hold() { held_ = true; }
  void Release();
  void Retry(absl::Time now);
  // Ends the socket. Packets sent before still arrive, queued ones do not. The
  // pidfd stays watched.
  void CloseSocket();
  // Closes the socket unnoticed by the peer: the next daemon has a duplicate.
  void Leave();
  bool open() const { return static_cast<bool>(socket_); }
  const UniqueFd& socket() const { return socket_; }
  int pidfd() const { return pidfd_.get(); }
  // InfiniteFuture if no packet waits.
  absl::Time stall_deadline() const;
  // Returns whether the peer has stalled. Tries to send first, because a retry
  // may be due (Wait).
  bool HasStalled(absl::Time now);
  void CountMemfd() { ++unread_memfds_; }
  // Returns how many memfds were sent since the peer had last read everything.
  int unread_memfds();
  absl::Time retry_at() const { return retry_at_; }
  const Principal& who() const { return who_; }
  SessionId id() const { return id_; }

 private:
  void OnSocket(uint32_t events);
  void Flush();
  // ResourceExhausted: try again later (InFlight::Take).
  absl::Status SendOne(const Outgoing& out);
  void Wait(const absl::Status& why);
  void DropQueue();

  Shared& shared_;
  const SessionId id_;
  const Principal who_;
  const wire::Discard discard_;
  // The peer sent descriptors that were discarded.
  bool discarded_ = false;
  UniqueFd socket_;
  UniqueFd pidfd_;
  bool held_ = false;
  std::deque<Outgoing> queue_;
  int64_t queued_bytes_ = 0;
  absl::Time stalled_since_;
  int unread_memfds_ = 0;
  absl::Time retry_at_ = absl::InfiniteFuture();
};

// Decides which session is read next, sends what waits, and ends sessions that
// have stalled.
class Sessions {
 public:
  // `handover` and what `shared` points to must outlive this object. The
  // daemon's `generation` is sent in each packet.
  Sessions(Channel::Shared shared, Handover* handover, uint64_t generation)
      : shared_(std::move(shared)),
        handover_(*handover),
        generation_(generation) {}
  Sessions(const Sessions&) = delete;

  // Reads from `socket`, which is empty if the session has ended, and watches
  // the process. REQUIRES: the session is charged to the user's quota.
  void Watch(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Watches a session of an earlier daemon. Also charges the session, and the
  // descriptors that the earlier daemon may have sent.
  void Adopt(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Returns null if there is no such session. The result is valid until Forget.
  Channel* Find(SessionId id) const;
  const std::map<SessionId, std::unique_ptr<Channel>>& channels() const {
    return channels_;
  }
  void Send(SessionId id, Outgoing out);
  // Queues all packets to the session until its socket, its pidfd and
  // `use_page` are kept for the next daemon.
  void HoldUntilKept(SessionId id, int use_page);
  void EndSocket(SessionId id);
  // Drops a session with a process that has ended or need not be watched.
  void Forget(SessionId id);
  void Leave();

  // Serves some of the waiting requests. Returns whether there are more.
  bool TakeTurns();
  absl::Time deadline() const;
  // Sends packets for which there is room now, and ends stalled sessions.
  void Expire();

  int most_descriptors() const { return shared_.in_flight.most(); }

 private:
  Channel::Shared shared_;
  Handover& handover_;
  const uint64_t generation_;
  std::map<SessionId, std::unique_ptr<Channel>> channels_;
  // To be destroyed in the loop's next turn, since handlers may be running.
  std::vector<std::unique_ptr<Channel>> graveyard_;
};

}  // namespace sluice::daemon
