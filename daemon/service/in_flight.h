// Counts descriptors that were sent but not received yet.
//
// The kernel counts them by the sender's user, for all receivers together, and
// refuses more than its soft limit of open files (ETOOMANYREFS): one peer that
// never reads could stop the leases of all. So they are a quota. The count does
// not rely on clients but on the kernel: the bytes that a socket has sent and
// its peer has not received (SIOCOUTQ) fall to 0 on receipt, or when the peer
// closes. The end of a session does not take back unread packets, so its socket
// is kept until they are read, and counts as a session of its user: descriptors
// that a forked child never reads must stay counted.
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
    kUnread,  // this session's peer has not received its packets
    kOthers,  // other peers of its user, or of all users, have not
  };

  explicit InFlight(Quotas* quotas) : quotas_(quotas) {}

  // Takes room for `count` descriptors on `socket`. A user with none on the way
  // always has room: a reserve below the kernel's limit is for that.
  Room Take(int socket, const Principal& who, int count, absl::Time now);
  // Adds the socket of an earlier daemon. What that daemon sent and was not
  // received counts as the most that one session may have.
  void Adopt(int socket, const Principal& who);
  // Gives back the room of descriptors that were not sent after all.
  void Undo(int socket, int count);
  // Ends the session. Returns `socket` if nothing is unread; else keeps it
  // until it is read.
  UniqueFd End(UniqueFd socket);
  // Returns when to call Sweep; InfiniteFuture if not needed.
  absl::Time deadline() const;
  // Gives back the room of descriptors that were received.
  void Look(absl::Time now);
  // Calls Look at intervals. Returns the kept sockets that may be closed now.
  std::vector<UniqueFd> Sweep(absl::Time now);

  // Returns the most that one packet may carry.
  int most() const;

 private:
  struct Socket {
    Principal who;
    int count = 0;
    UniqueFd ended = UniqueFd();  // socket of an ended session
  };
  // If nothing is unread, gives the socket's room back and returns true.
  bool Received(int fd, Socket& socket);

  Quotas* quotas_;
  std::map<int, Socket> sockets_;
  int ended_ = 0;
  absl::Time swept_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
