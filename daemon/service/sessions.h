// The sockets and processes of all sessions, as channels on the loop. Decides
// which one is read next, sends what waits, and ends sessions that have
// stalled.
//
// Requests are read in turns of principals, not of connections (quota/turns.h),
// for kTurn at a time. A packet with descriptors waits until they may be in
// flight (in_flight.h).
//
// Thread safety: loop's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "daemon/service/channel.h"
#include "daemon/service/convert.h"
#include "daemon/service/takeover/handover.h"
#include "proto/base/ids.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Sessions {
 public:
  // `handover` must outlive this object, as what `shared` points to. The
  // daemon's `generation` is sent in each packet.
  Sessions(Channel::Shared shared, Handover* handover, uint64_t generation)
      : shared_(std::move(shared)),
        handover_(*handover),
        generation_(generation) {}
  Sessions(const Sessions&) = delete;

  // Reads the session and watches its process. `socket` is empty if it has
  // ended. REQUIRES: the session is charged to the user's quota.
  void Watch(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // For a session of an earlier daemon. Also charges the session, and the
  // descriptors which that daemon may have sent.
  void Adopt(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Null if there is none. Valid until the session is forgotten.
  Channel* Find(SessionId id) const;
  const std::map<SessionId, std::unique_ptr<Channel>>& channels() const {
    return channels_;
  }
  void Send(SessionId id, Outgoing out);
  // Queues all packets to the session until its socket, its pidfd and
  // `use_page` are kept for the next daemon.
  void HoldUntilKept(SessionId id, int use_page);
  // Packets sent before still arrive.
  void EndSocket(SessionId id);
  // For a session with a process that has ended or need not be watched.
  void Forget(SessionId id);
  // The peers do not notice: the next daemon has duplicates of the sockets.
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
  // Destroyed in the loop's next turn, since their handlers may be running.
  std::vector<std::unique_ptr<Channel>> graveyard_;
};

}  // namespace sluice::daemon
