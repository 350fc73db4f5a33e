// Descriptors that were sent and that nobody has received yet.
//
// The kernel counts them by the sender's user and refuses more than its soft
// limit of open files (ETOOMANYREFS), whoever they were sent to: one peer that
// never reads could end everybody's leases. So they are a quota. What a client
// says it received is not believed; the kernel is asked: what a socket has sent
// and its peer not received (SIOCOUTQ) falls to 0 on receipt, or when the peer
// closes. A session's end does not take back what its peer has not read, so its
// socket is kept until then, and counts as a session of its user: what a forked
// child never reads must not take descriptors that nobody counts.
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
  // Of one session: as many as one packet carries.
  static constexpr int kMostOfASession = 253;
  // How often those who wait ask again, and sockets of sessions that ended are
  // looked at.
  static constexpr absl::Duration kAgain = absl::Milliseconds(5);

  enum class Room {
    kYes,
    kUnread,  // this session's peer has not received what it was sent
    kOthers,  // others of its user, or all together, have not
  };

  explicit InFlight(Quotas* quotas) : quotas_(quotas) {}

  // Takes room for `count` descriptors on `socket`. Who has none on the way has
  // room whatever others do: a reserve below the kernel's limit is for that.
  Room Take(int socket, const Principal& who, int count, absl::Time now);
  // A socket of an earlier daemon: what that one sent and nobody received may
  // carry as many as one may.
  void Adopt(int socket, const Principal& who);
  // Takes back descriptors that were not sent after all.
  void Undo(int socket, int count);
  // The session is over. `socket` is given back where nothing is unread, else
  // kept until it is read.
  UniqueFd End(UniqueFd socket);
  // When Sweep has something to look at; InfiniteFuture: nothing.
  absl::Time deadline() const;
  // Gives back what was received.
  void Look(absl::Time now);
  // The same, now and then. Returns the sockets that are done with.
  std::vector<UniqueFd> Sweep(absl::Time now);

  // The most that one packet may carry.
  int most() const;

 private:
  struct Socket {
    Principal who;
    int count = 0;
    UniqueFd ended = UniqueFd();  // of a session that is over
  };
  // Nothing is unread: true, and its count given back.
  bool Received(int fd, Socket& socket);

  Quotas* quotas_;
  std::map<int, Socket> sockets_;
  int ended_ = 0;
  absl::Time swept_ = absl::InfinitePast();
};

}  // namespace sluice::daemon
