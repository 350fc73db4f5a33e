// One session's socket and pidfd on the loop.
//
// Sends never block. What the peer's buffer does not take waits in a queue,
// and while it does the daemon reads no more requests from this peer: a
// client that never reads costs one queue of replies to what it asked, and is
// dropped after kStallLimit.
//
// Thread safety: loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/types.h"
#include "daemon/service/closer.h"
#include "daemon/service/convert.h"
#include "daemon/service/loop.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::daemon {

class Channel {
 public:
  static constexpr absl::Duration kStallLimit = absl::Seconds(5);
  // Notices to one that does not read; replies are bounded by its requests.
  static constexpr size_t kMaxQueued = 4096;

  struct Handlers {
    // What it leaves of the descriptors is discarded.
    std::function<void(wire::Message&)> message;
    std::function<void()> ended;                     // the peer closed
    std::function<void(const std::string&)> broken;  // it broke the protocol
    std::function<void()> gone;                      // its process ended
  };

  // `loop` and `closer` outlive the channel. Handlers may destroy it only
  // through Post. `uid` is the peer's.
  Channel(Loop* loop, Closer* closer, uint32_t uid, UniqueFd socket,
          UniqueFd pidfd, Handlers handlers);
  ~Channel();
  Channel(const Channel&) = delete;

  void Send(Outgoing out);
  // Ends the socket: what was sent still arrives, what waits does not. The
  // pidfd stays watched.
  void CloseSocket();
  bool open() const { return static_cast<bool>(socket_); }
  int pidfd() const { return pidfd_.get(); }
  // A memfd goes out that was made to answer this peer.
  void CountMemfd() { ++unread_memfds_; }
  // How many of these went out since the peer last had read everything.
  int unread_memfds();
  // When the peer must have read something; InfiniteFuture: nothing waits.
  absl::Time stall_deadline() const;

 private:
  void OnSocket(uint32_t events);
  void ReadSome();
  void Flush();
  absl::Status SendOne(const Outgoing& out);

  Loop* loop_;
  Closer* closer_;
  const uint32_t uid_;
  const wire::Discard discard_;
  bool discarded_ = false;  // it sent descriptors that nobody wants
  UniqueFd socket_;
  UniqueFd pidfd_;
  Handlers handlers_;
  std::deque<Outgoing> queue_;
  absl::Time stalled_since_;
  int unread_memfds_ = 0;
};

}  // namespace sluice::daemon
