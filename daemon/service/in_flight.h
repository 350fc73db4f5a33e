// Counts descriptors that were sent and have not been received yet.
//
// The kernel counts them by the sender's user and refuses more than its soft
// limit of open files (ETOOMANYREFS), for all receivers together: one peer that
// never reads could end the leases of all. So they are a quota. What a client
// says it received is not believed; the kernel is asked: what a socket has sent
// and its peer not received (SIOCOUTQ) falls to 0 on receipt, or when the peer
// closes. A session's end does not take back what its peer has not read, so its
// socket is kept until then, and counts as a session of its user: descriptors
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
  // The limit of one session: as many as one packet carries.
  static constexpr int kMostOfASession = 253;
  // How often waiting sessions ask again, and the sockets of ended sessions are
  // checked.
  static constexpr absl::Duration kAgain = absl::Milliseconds(5);

  enum class Room {
    kYes,
    kUnread,  // this session's peer has not received what it was sent
    kOthers,  // others of its user, or all together, have not
  };

  explicit InFlight(Quotas* quotas) : quotas_(quotas) {}

  // Takes room for `count` descriptors on `socket`. A session with none on the
  // way has room whatever others do: a reserve below the kernel's limit is for
  // that.
  Room Take(int socket, const Principal& who, int count, absl::Time now);
  // A socket of an earlier daemon. What that one sent and was not received
  // counts as the most that one session may have.
  void Adopt(int socket, const Principal& who);
  // Takes back descriptors that were not sent after all.
  void Undo(int socket, int count);
  // Ends the session. Returns `socket` if nothing is unread; else keeps it
  // until it is read.
  UniqueFd End(UniqueFd socket);
  // When Sweep has something to look at; InfiniteFuture if nothing.
  absl::Time deadline() const;
  // Gives back what was received.
  void Look(absl::Time now);
  // The same at intervals. Returns the sockets that are done with.
  std::vector<UniqueFd> Sweep(absl::Time now);

  // The most that one packet may carry.
  int most() const;

 private:
  struct Socket {
    Principal who;
    int count = 0;
    UniqueFd ended = UniqueFd();  // of a session that is over
  };
  // True if nothing is unread; gives its count back.
  bool Received(int fd, Socket& socket);

  Quotas* quotas_;
  std::map<int, Socket> sockets_;
  int ended_ = 0;
  absl::Time swept_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
