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
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/quota/quotas.h"
#include "daemon/quota/turns.h"
#include "daemon/service/channel.h"
#include "daemon/service/closer.h"
#include "daemon/service/convert.h"
#include "daemon/service/in_flight.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/ids.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::daemon {

class Sessions {
 public:
  struct Handlers {
    // Handles a packet. The session closes the descriptors that are not moved
    // out.
    std::function<void(SessionId, wire::Message&)> message;
    std::function<void(SessionId)> ended;  // its socket ended
    // The session broke the protocol, or did not read for Channel::kStallLimit.
    std::function<void(SessionId, const std::string& why)> broken;
    std::function<void(SessionId)> gone;  // its process ended
  };
  struct Parts {
    Loop* loop;
    Closer* closer;
    Quotas* quotas;
    Handover* handover;
    uint64_t generation;  // the daemon's, sent in each packet
  };

  // The parts must outlive this object.
  Sessions(Parts parts, Handlers handlers);
  Sessions(const Sessions&) = delete;

  // Starts reading the session and watching its process. `socket` is empty if
  // it has ended. REQUIRES: the session is charged to the user's quota.
  void Watch(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Does the same for a session of an earlier daemon. Charges the session, and
  // the descriptors which that daemon may have sent.
  void Adopt(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Returns the session's channel, valid until the session is forgotten; null
  // if there is none.
  Channel* Find(SessionId id) const;
  const std::map<SessionId, std::unique_ptr<Channel>>& channels() const {
    return channels_;
  }
  void Send(SessionId id, Outgoing out);
  // Queues all packets to the session until its socket, its pidfd and
  // `use_page` are kept for the next daemon.
  void HoldUntilKept(SessionId id, int use_page);
  // Ends the session's socket; packets sent before still arrive.
  void EndSocket(SessionId id);
  // Forgets the session, because its process has ended or need not be watched
  // any more.
  void Forget(SessionId id);
  // Closes all sockets without the peers noticing, because the next daemon has
  // duplicates.
  void Leave();

  // Serves some of the waiting requests. Returns whether there are more.
  bool TakeTurns();
  absl::Time deadline() const;
  // Sends packets for which there is room now, and ends stalled sessions.
  void Expire();

  int most_descriptors() const { return in_flight_.most(); }

 private:
  const Parts parts_;
  const Handlers handlers_;
  InFlight in_flight_;
  Turns turns_;
  std::set<const Channel*> queued_;  // Channel::Shared
  std::map<SessionId, std::unique_ptr<Channel>> channels_;
  // Destroyed in the loop's next turn, since their handlers may be running.
  std::vector<std::unique_ptr<Channel>> graveyard_;
};

}  // namespace sluice::daemon
