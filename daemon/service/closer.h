// Closes descriptors from clients, on its own threads.
//
// Closing a client's descriptor can take as long as the client likes: a TCP
// socket lingers, a file system in user space answers late or never. The same
// holds for session sockets, since unread packets contain descriptors too. So
// neither is ever closed on the loop. (The daemon's own files and sealed memfds
// of bounded size are closed where they are used.)
//
// How it works. One thread closes session sockets. kThreads threads close
// received descriptors, one at a time for each user, and share their time
// fairly among users (quota/fair_queue.h). A close that takes longer than a
// millisecond is interrupted by a signal, which ends the wait of a lingering
// socket. A close that no signal ends (a file system with a stopped server)
// blocks its thread and that user's queue.
//
// Limits. The caller checks waiting_of before it reads more. A user with more
// than kMostOfAUser waiting descriptors loses the session that sent them, and
// gets no new session until they are closed. So a user never has more than that
// plus those of one packet. While kMostSockets sockets wait, no connection is
// accepted.
//
// Thread safety: safe.
#pragma once

#include <cstddef>
#include <memory>

#include "daemon/quota/principal.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Closer {
 public:
  static constexpr int kThreads = 4;
  static constexpr size_t kMostOfAUser = 256;
  static constexpr size_t kMostSockets = 256;

  Closer();
  // Waits a moment for descriptors that are being closed. The rest is closed
  // when the process ends.
  ~Closer();
  Closer(const Closer&) = delete;

  // Closes a descriptor that the user has sent and no request needs.
  void Discard(const Principal& who, UniqueFd fd);
  // Ends a session's socket for both sides. Drops unread packets first: closing
  // a socket with unread packets resets it, and the peer would miss the last
  // packets (such as the reason for its eviction).
  void CloseSession(UniqueFd socket);

  // Returns how many descriptors of the user wait or are being closed.
  size_t waiting_of(const Principal& who) const;
  size_t sockets_waiting() const;
  size_t waiting() const;  // of all users, including sockets

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace sluice::daemon
