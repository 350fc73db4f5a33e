// Closes what came from a client, on threads of its own.
//
// Closing a client's descriptor can take as long as its sender likes: a TCP
// socket lingers, a file system in user space answers late or never. A
// session's socket is the same, for packets that were not read hold descriptors
// too. So neither is ever closed on the loop. (The daemon's own files and a
// sealed memfd of bounded size are closed where they are.)
//
// How it works. One thread closes session sockets, kThreads close descriptors
// that were received, at most one at a time for each user and fair to users by
// the time that it takes (quota/fair_queue.h). A close that takes
// longer than a millisecond is interrupted by a signal, which ends the wait of
// a lingering socket. A close that no signal ends (a file system with a stopped
// server) blocks the thread that runs it, and that user's queue.
//
// What bounds it. The caller asks before it reads more: a user with more than
// kMostOfAUser waiting loses the session that sent them and gets no other one
// until they are closed, so there are never more than that and one packet; and
// while kMostSockets sockets wait, no connection is accepted.
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

  // A descriptor of that user which no request takes.
  void Discard(const Principal& who, UniqueFd fd);
  // Ends a session's socket for both sides. What it has not read is dropped
  // first: closed with unread packets, a socket resets its peer, which would
  // then miss what was sent last (why it was evicted).
  void CloseSession(UniqueFd socket);

  // How many of the user's wait or are being closed.
  size_t waiting_of(const Principal& who) const;
  size_t sockets_waiting() const;
  size_t waiting() const;  // of all users, with the sockets

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace sluice::daemon
