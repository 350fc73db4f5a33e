// Counts descriptors in flight: sent, but not received yet.
//
// The kernel counts them by the sender's user, for all receivers together, and
// refuses more than the soft limit of open files (ETOOMANYREFS). So one peer
// that never reads could stop the leases of all, and descriptors in flight are
// a quota. The count relies on the kernel and not on clients: the number of
// bytes that a socket has sent and its peer has not received (SIOCOUTQ) falls
// to 0 on receipt, or when the peer closes. The end of a session does not take
// back unread packets. So its socket is kept until they are read, and counts as
// a session of its user: descriptors that a forked child never reads must stay
// counted.
//
// Thread safety: the loop's thread only.
#pragma once

#include <map>
#include <vector>

#include "absl/time/time.h"
#include "daemon/quota/quotas.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class InFlight {
 public:
  // The limit of one session: as many as one packet can carry.
  static constexpr int kMostOfASession = 253;
  // How often waiting sessions try again, and the sockets of ended sessions are
  // checked.
  static constexpr absl::Duration kAgain = absl::Milliseconds(5);

  enum class Room {
    kYes,
    kUnread,  // the peer of this session has not received its packets
    kOthers,  // other peers, of its user or of all users, have not
  };

  explicit InFlight(Quotas* quotas) : quotas_(quotas) {}

  // Counts `count` descriptors that will be sent on `socket`, if there is room.
  // A user without descriptors in flight always has room, by a reserve below
  // the kernel's limit.
  Room Take(int socket, const Principal& who, int count, absl::Time now);
  // Adds the socket of an earlier daemon. Counts the most that one session may
  // have, because it is unknown how much that daemon sent that was not
  // received.
  void Adopt(int socket, const Principal& who);
  // Uncounts descriptors that were not sent after all.
  void Undo(int socket, int count);
  // Ends the session. Returns `socket` if all its packets are read; otherwise
  // keeps it until they are.
  UniqueFd End(UniqueFd socket);
  // Returns when to call Sweep; InfiniteFuture if not needed.
  absl::Time deadline() const;
  // Uncounts the descriptors that were received by now.
  void Look(absl::Time now);
  // Calls Look if it is time. Returns the kept sockets that may be closed now.
  std::vector<UniqueFd> Sweep(absl::Time now);

  // Returns the most that one packet may carry.
  int most() const;

 private:
  struct Socket {
    Principal who;
    int count = 0;
    UniqueFd ended = UniqueFd();  // socket of an ended session
  };
  // If all packets of the socket were received, uncounts them and returns true.
  bool Received(int fd, Socket& socket);

  Quotas* quotas_;
  std::map<int, Socket> sockets_;
  int ended_ = 0;
  absl::Time swept_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
