// Closes descriptors from clients, on its own threads.
//
// Closing a client's descriptor can take as long as the client likes: a TCP
// socket lingers, a file system in user space answers late or never, and unread
// packets of a session socket contain descriptors.
//
// One thread closes session sockets. kThreads threads close received
// descriptors, one at a time for each user, fairly (quota/fair_queue.h). A
// signal after a millisecond ends the wait of a lingering socket; a close that
// no signal ends (a file system with a stopped server) blocks its thread and
// that user's queue.
//
// A user with more than kMostOfAUser waiting descriptors loses the session that
// sent them, and gets no new one until they are closed. While kMostSockets
// sockets wait, no connection is accepted.
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
  // Waits a moment; the end of the process closes descriptors that still wait.
  ~Closer();
  Closer(const Closer&) = delete;

  void Discard(const Principal& who, UniqueFd fd);
  // Shuts the socket down, drops its unread packets and closes it. Closing it
  // with unread packets would reset the connection, and the peer would lose the
  // last packets that it was sent, such as the reason of an eviction.
  void CloseSession(UniqueFd socket);

  // These count descriptors that wait or are being closed.
  size_t waiting_of(const Principal& who) const;
  size_t sockets_waiting() const;
  size_t waiting() const;  // of all users, including sockets

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace sluice::daemon
