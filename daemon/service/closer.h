// Closes what came from clients, on threads of its own.
//
// Closing a client's descriptor can take as long as its sender likes: a TCP
// socket lingers, a file system in user space answers late or never. The same
// holds for session sockets, since unread packets hold descriptors too. So
// neither is ever closed on the loop. (The daemon's own files and sealed memfds
// of bounded size are closed where they are used.)
//
// How it works. One thread closes session sockets; kThreads threads close
// received descriptors, at most one at a time for each user, and fair to users
// by the time that it takes (quota/fair_queue.h). A close that takes longer
// than a millisecond is interrupted by a signal, which ends the wait of a
// lingering socket. A close that no signal ends (a file system with a stopped
// server) blocks its thread, and that user's queue.
//
// Limits. The caller asks before it reads more: a user with more than
// kMostOfAUser waiting descriptors loses the session that sent them, and gets
// no new session until they are closed, so there are never more than that and
// one packet. While kMostSockets sockets wait, no connection is accepted.
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
  // Waits a moment for what is being closed; the end of the process closes the
  // rest.
  ~Closer();
  Closer(const Closer&) = delete;

  // Closes a descriptor from that user that no request takes.
  void Discard(const Principal& who, UniqueFd fd);
  // Ends a session's socket for both sides. Drops unread packets before: a
  // socket that is closed with unread packets resets its peer, which would then
  // miss the last packets (such as the reason for its eviction).
  void CloseSession(UniqueFd socket);

  // Returns how many of the user's descriptors wait or are being closed.
  size_t waiting_of(const Principal& who) const;
  size_t sockets_waiting() const;
  size_t waiting() const;  // of all users, including sockets

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace sluice::daemon
