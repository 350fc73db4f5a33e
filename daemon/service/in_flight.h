// Counts descriptors in flight: sent, but not received yet.
//
// The kernel counts them by the sender's user, for all receivers together, and
// refuses more than the soft limit of open files (ETOOMANYREFS): one peer that
// never reads could stop the leases of all. So descriptors in flight are a
// quota. The kernel, not the client, tells what was received: the unread bytes
// of a socket (SIOCOUTQ) fall to 0 when the peer has read all packets, or
// closes. The socket of an ended session is kept until its packets are read,
// and counts as a session of its user: descriptors that a forked child never
// reads must stay counted.
//
// Thread safety: the loop's thread only.
#pragma once

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/quota/quotas.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class InFlight {
 public:
  // The limit of one session: as many as one packet can carry.
  static constexpr int kMostOfASession = 253;
  // How often waiting and ended sessions are checked.
  static constexpr absl::Duration kAgain = absl::Milliseconds(5);

  explicit InFlight(Quotas* quotas) : quotas_(quotas) {}

  // Counts `count` descriptors that will be sent, if there is room. A user
  // without descriptors in flight always has room, because the quota is below
  // the kernel's limit. ResourceExhausted: the peer has not received its
  // packets; marked kOpenFiles: other peers have not.
  absl::Status Take(int socket, const Principal& who, int count,
                    absl::Time now);
  // Counts the most that a session may have for a socket of an earlier daemon,
  // since what was not received is unknown.
  void Adopt(int socket, const Principal& who);
  void Undo(int socket, int count);
  // Returns `socket` if all its packets are read; else keeps it until then.
  UniqueFd End(UniqueFd socket);
  absl::Time deadline() const;
  void Look(absl::Time now);  // gives back the quota of what was received
  // Calls Look if the last call was kAgain ago. Returns kept sockets to close.
  std::vector<UniqueFd> Sweep(absl::Time now);

  int most() const;

 private:
  struct Socket {
    Principal who;
    int count = 0;
    UniqueFd ended = UniqueFd();  // socket of an ended session
  };
  // If the peer has received all, gives its count back and returns true.
  bool Received(int fd, Socket& socket);

  Quotas* quotas_;
  std::map<int, Socket> sockets_;
  int ended_ = 0;
  absl::Time swept_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
