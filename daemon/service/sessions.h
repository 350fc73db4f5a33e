// The sockets and processes of all sessions, as channels on the loop: which is
// read next, what waits to be sent, which has stalled.
//
// Requests are read in turns of principals, not of connections (quota/turns.h),
// for kTurn at a time. A packet with descriptors waits for room among those on
// their way (in_flight.h).
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
    // The session discards the descriptors that the handler does not take.
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

  // Starts reading the session and watching its process. Without `socket`, the
  // socket has ended. REQUIRES: the session is charged to the user's quota.
  void Watch(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Does the same for a session of an earlier daemon, and charges it and what
  // that daemon may have sent.
  void Adopt(SessionId id, const Principal& who, UniqueFd socket,
             UniqueFd pidfd);
  // Returns null if there is none. Valid until the session is forgotten.
  Channel* Find(SessionId id) const;
  const std::map<SessionId, std::unique_ptr<Channel>>& channels() const {
    return channels_;
  }
  // Does nothing if the session is forgotten.
  void Send(SessionId id, Outgoing out);
  // Holds all sends until its socket, its pidfd and `use_page` are kept for the
  // next daemon.
  void HoldUntilKept(SessionId id, int use_page);
  // Ends the session's socket; packets sent before still arrive.
  void EndSocket(SessionId id);
  // Forgets the session: its process has ended, or need not be watched any
  // more.
  void Forget(SessionId id);
  // Leaves all sessions to another daemon, which has the sockets too: peers see
  // nothing.
  void Leave();

  // Serves some of the waiting requests. Returns whether there are more.
  bool TakeTurns();
  // Returns when to call Expire.
  absl::Time deadline() const;
  // Sends what there is room for now, and ends stalled sessions.
  void Expire();

  // Returns how many descriptors one packet may carry.
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
