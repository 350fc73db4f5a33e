// The socket and the pidfd of one session on the loop.
//
// Sends never block. Packets that do not fit into the peer's buffer wait in a
// queue. While the queue is not empty, the daemon reads no more requests from
// this peer. So a client that never reads costs one queue of replies, and is
// dropped after kStallLimit. A packet with descriptors also waits until it may
// be in flight (in_flight.h); a client is not dropped if other clients use up
// that limit.
//
// A channel does not read by itself. It reports that there is something to
// read, and its owner, which shares out the loop's time (quota/turns.h), calls
// ReadOne.
//
// Thread safety: loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/closer.h"
#include "daemon/service/convert.h"
#include "daemon/service/in_flight.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::daemon {

class Channel {
 public:
  static constexpr absl::Duration kStallLimit = absl::Seconds(5);
  // Limit of notices queued for a peer that does not read; replies are limited
  // by its requests.
  static constexpr size_t kMaxQueued = 4096;

  // Shared by all sessions; must outlive them.
  struct Shared {
    Loop* loop;
    Closer* closer;
    Quotas* quotas;
    InFlight* in_flight;
    // Channels with a queue; only these have a deadline.
    std::set<const Channel*>* queued;
  };
  struct Handlers {
    std::function<void()> readable;  // there is something to read
    // Handles a packet. The channel closes the descriptors that are not moved
    // out.
    std::function<void(wire::Message&)> message;
    std::function<void()> ended;  // the peer closed its socket
    // The peer broke the protocol.
    std::function<void(const std::string&)> broken;
    std::function<void()> gone;  // the peer's process ended
  };

  // Handlers may destroy the channel only through Post. `socket` is empty if it
  // has ended and only the process is watched.
  Channel(Shared shared, Principal who, UniqueFd socket, UniqueFd pidfd,
          Handlers handlers);
  ~Channel();
  Channel(const Channel&) = delete;

  // Reads one packet, if one is there and may be read. Returns whether there
  // may be more. If it returns false, `readable` is called when there is.
  bool ReadOne();
  void Send(Outgoing out);
  // Queues all packets until Release. The stall limit does not apply meanwhile.
  void Hold() { held_ = true; }
  void Release();
  // Sends packets that waited for the limit of descriptors in flight, if it is
  // time to try again.
  void Retry(absl::Time now);
  // Ends the socket: packets sent before still arrive, queued ones do not. The
  // pidfd stays watched.
  void CloseSocket();
  // Closes this process's socket. The peer does not notice, because the next
  // daemon has a duplicate of the socket.
  void Leave();
  bool open() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }
  absl::StatusOr<UniqueFd> DuplicateSocket() const {
    return socket_.Duplicate();
  }
  int pidfd() const { return pidfd_.get(); }
  // Returns when the peer must have read something; InfiniteFuture if no packet
  // waits.
  absl::Time stall_deadline() const;
  // Returns whether the peer has missed that deadline. Tries to send first,
  // because the kernel reports room a moment before it counts a packet as
  // received.
  bool HasStalled(absl::Time now);
  // Counts a memfd that is sent to answer this peer.
  void CountMemfd() { ++unread_memfds_; }
  // Returns how many memfds were sent since the peer had last read everything.
  int unread_memfds();
  // Returns when to call Retry; InfiniteFuture if not needed.
  absl::Time retry_at() const { return retry_at_; }
  const Principal& who() const { return who_; }

 private:
  void OnSocket(uint32_t events);
  void Flush();
  // Sends one packet. ResourceExhausted: try again later; marked kOpenFiles if
  // other peers have used up the limit of descriptors in flight.
  absl::Status SendOne(const Outgoing& out);
  void Wait(const absl::Status& why);
  void DropQueue();

  const Shared shared_;
  const Principal who_;
  const wire::Discard discard_;
  // The peer sent descriptors that its request does not need.
  bool discarded_ = false;
  UniqueFd socket_;
  UniqueFd pidfd_;
  Handlers handlers_;
  bool held_ = false;
  std::deque<Outgoing> queue_;
  int64_t queued_bytes_ = 0;
  absl::Time stalled_since_;
  int unread_memfds_ = 0;
  absl::Time retry_at_ = absl::InfiniteFuture();
};

}  // namespace sluice::daemon
