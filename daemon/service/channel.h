// One session's socket and pidfd on the loop.
//
// Sends never block. What the peer's buffer does not take waits in a queue,
// and while it does the daemon reads no more requests from this peer: a
// client that never reads costs one queue of replies to what it asked, and is
// dropped after kStallLimit. A packet with descriptors also waits for room
// among those on their way (in_flight.h); a client is not dropped because
// others leave none.
//
// It does not read by itself: it reports that there is something to read, and
// its owner, which shares out the loop's time (quota/turns.h), calls ReadOne.
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
  // The most notices queued for a peer that does not read; replies are bounded
  // by its requests.
  static constexpr size_t kMaxQueued = 4096;

  // What all sessions share; it outlives them.
  struct Shared {
    Loop* loop;
    Closer* closer;
    Quotas* quotas;
    InFlight* in_flight;
    // Channels with a queue; only these have a deadline.
    std::set<const Channel*>* queued;
  };
  struct Handlers {
    std::function<void()> readable;  // it wants a turn
    // The channel discards the descriptors that the handler leaves.
    std::function<void(wire::Message&)> message;
    std::function<void()> ended;                     // the peer closed
    std::function<void(const std::string&)> broken;  // it broke the protocol
    std::function<void()> gone;                      // its process ended
  };

  // Handlers may destroy it only through Post. No socket: the socket has ended,
  // the process has not.
  Channel(Shared shared, Principal who, UniqueFd socket, UniqueFd pidfd,
          Handlers handlers);
  ~Channel();
  Channel(const Channel&) = delete;

  // Reads one packet, if one is there and may be read. Returns whether there
  // may be more: if not, `readable` says when.
  bool ReadOne();
  void Send(Outgoing out);
  // Sends nothing until Release. The stall limit does not apply to what waits.
  void Hold() { held_ = true; }
  void Release();
  // Sends what waited for room that others took, if it is time to look again.
  void Retry(absl::Time now);
  // Ends the socket: what was sent still arrives, queued packets do not. The
  // pidfd stays watched.
  void CloseSocket();
  // Leaves it to another daemon, which has the socket too: the peer sees
  // nothing.
  void Leave();
  bool open() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }
  absl::StatusOr<UniqueFd> DuplicateSocket() const {
    return socket_.Duplicate();
  }
  int pidfd() const { return pidfd_.get(); }
  // When the peer must have read something; InfiniteFuture if nothing waits.
  absl::Time stall_deadline() const;
  // Whether it has not by `now`. Reads its receipts before it judges: the
  // kernel reports room a moment before it counts a receipt.
  bool HasStalled(absl::Time now);
  // Counts a memfd that is sent to answer this peer.
  void CountMemfd() { ++unread_memfds_; }
  // How many of these were sent since the peer last had read everything.
  int unread_memfds();
  // When to call Retry; InfiniteFuture if not needed.
  absl::Time retry_at() const { return retry_at_; }
  const Principal& who() const { return who_; }

 private:
  void OnSocket(uint32_t events);
  void Flush();
  // ResourceExhausted: try later; marked kOpenFiles if others leave no room.
  absl::Status SendOne(const Outgoing& out);
  void Wait(const absl::Status& why);
  void DropQueue();

  const Shared shared_;
  const Principal who_;
  const wire::Discard discard_;
  bool discarded_ = false;  // it sent descriptors that no request takes
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
