// Requests, replies and events over one session socket. Internal to client.
//
// A dedicated thread receives, and passes events to the handler. When the
// daemon closes the socket, every waiting and later Call returns Unavailable.
// If the daemon dies, another one may take over the socket: packets then have
// another generation, and the pending calls are sent again.
// Thread safety: safe. The handlers run on the receiving thread and must not
// call back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/find.h"
#include "proto/base/mutex.h"
#include "proto/base/shortage.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::client {

// The requests of a session that have no whole answer yet. They are sent again
// to a daemon that takes over the session.
//
// Each request is executed once: the daemon remembers the ids that it answered
// until a later request states that the answers have arrived (answered_up_to).
// So a second answer equals the first and is ignored. Only a lease granted to
// an abandoned request has no owner; it is given back. Thread safety: none;
// Connection guards it with a mutex.
class PendingCalls {
 public:
  enum class Waits { kCaller, kNobody };
  // Keeps the request and its descriptors, and returns the packet to send.
  // Keeps only the last kMostReports step reports: their totals include older
  // ones. ResourceExhausted: kMostPosted requests without a caller have no
  // answer.
  absl::StatusOr<wire::Packet> Add(const wire::Request& request,
                                   std::vector<UniqueFd> fds, Waits waits);
  // Forgets a call that was never sent.
  void Drop(uint64_t id) { calls_.erase(id); }
  // Records that the caller no longer waits; the answer may still arrive.
  void Abandon(uint64_t id) {
    if (Call* call = FindOrNull(calls_, id)) call->waits = Waits::kNobody;
  }
  void Progressed(uint64_t id, absl::Time now) {
    if (Call* call = FindOrNull(calls_, id)) call->progressed_at = now;
  }
  // Returns the time of the last progress that the daemon reported on the
  // request, or InfinitePast.
  absl::Time progressed_at(uint64_t id) const {
    const Call* call = FindOrNull(calls_, id);
    return call != nullptr ? call->progressed_at : absl::InfinitePast();
  }

  // Adds a packet of an answer to its request. If the packet completes a grant
  // for an abandoned request, returns the lease's id: the caller must free it.
  std::optional<uint64_t> Answer(wire::Message message);
  bool complete(uint64_t id) const {
    const Call* call = FindOrNull(calls_, id);
    return call != nullptr && call->IsWhole();
  }
  // Returns whether a request of this kind has no whole answer.
  bool Awaits(wire::Request::BodyCase kind) const {
    return std::ranges::any_of(calls_, [&](const auto& each) {
      return each.second.packet.request().body_case() == kind &&
             !each.second.IsWhole();
    });
  }
  // Returns the answer, in the order of its parts, and drops the request.
  std::vector<wire::Message> Take(uint64_t id) {
    std::vector<wire::Message> parts;
    for (auto& [part, message] : calls_.at(id).parts) {
      parts.push_back(std::move(message));
    }
    calls_.erase(id);
    return parts;
  }

  // Call it when another daemon took over. Drops incomplete answers and marks
  // their requests to be sent again.
  void Restart() {
    for (auto& [id, call] : calls_) {
      if (call.IsWhole()) continue;  // complete: its caller is about to take it
      call.parts.clear();
      call.unsent = true;
    }
  }
  // Sends the marked requests in the order of their ids, until `send` returns
  // ResourceExhausted. The next call sends the remaining requests.
  using Send = absl::FunctionRef<absl::Status(const wire::Packet&,
                                              std::span<const int>)>;
  void SendUnsent(Send send);

  static constexpr size_t kMostPosted = 1024;
  static constexpr size_t kMostReports = 64;

 private:
  struct Call {
    wire::Packet packet;
    std::vector<UniqueFd> fds;
    Waits waits = Waits::kCaller;
    bool unsent = false;
    std::map<uint32_t, wire::Message> parts;
    absl::Time progressed_at = absl::InfinitePast();
    bool IsWhole() const;
  };
  std::map<uint64_t, Call> calls_;
  uint64_t next_id_ = 1;
};

class Connection {
 public:
  using EventHandler = std::function<void(wire::Message)>;
  // Called last, when the daemon closes the session after at least one packet.
  using GoneHandler = std::function<void(const std::string& reason)>;

  static absl::StatusOr<std::unique_ptr<Connection>> Open(
      const std::string& socket, EventHandler on_event, GoneHandler on_gone);
  struct Greeted {
    std::unique_ptr<Connection> connection;
    std::vector<wire::Message> answer;
  };
  // Connects, and sends the request that opens the session. If the daemon dies
  // before it answers, asks the next daemon, for at most kGreeting. `fds` makes
  // the descriptors of each try.
  static absl::StatusOr<Greeted> Greet(
      const std::string& socket, const wire::Request& hello,
      const std::function<std::vector<UniqueFd>()>& fds, EventHandler on_event,
      GoneHandler on_gone, absl::Duration timeout = kCallTimeout);
  ~Connection() { Close(); }

  // Sends a request and returns all parts of its reply. The daemon's Error
  // becomes a Status, also an Error that refuses the whole session.
  // DeadlineExceeded: sending and the answer took more than `timeout`, which
  // starts again whenever the daemon reports that it makes the lease's memory.
  absl::StatusOr<std::vector<wire::Message>> Call(
      const wire::Request& request, std::vector<UniqueFd> fds = {},
      absl::Duration timeout = kCallTimeout);

  // Sends without waiting; the reply is dropped. ResourceExhausted: nothing was
  // sent, because the daemon does not read or answer.
  absl::Status Post(const wire::Request& request);

  // Call it if systemd or a keeper keeps the socket open when the daemon dies.
  void SetKept() { kept_ = true; }

  bool Awaits(wire::Request::BodyCase kind) {
    const MutexLock lock(mutex_);
    return calls_.Awaits(kind);
  }

  // Ends the session; the daemon reclaims its leases.
  void Close();

  static constexpr absl::Duration kCallTimeout = absl::Seconds(60);
  static constexpr absl::Duration kGreeting = absl::Seconds(10);

 private:
  Connection(UniqueFd socket, EventHandler on_event, GoneHandler on_gone);
  // Returns whether the daemon closed the socket without sending a packet.
  bool IsUnheard() {
    const MutexLock lock(mutex_);
    return gone_ && generation_ == 0 && refused_.ok();
  }
  void Run();
  void OnReply(wire::Message message);
  void OnGeneration(const wire::Packet& packet);
  void Disconnect(const std::string& reason,
                  Shortage shortage = Shortage::kNone);
  // Sends without waiting. ResourceExhausted: the socket has no room.
  absl::Status TrySend(const wire::Packet& packet, std::span<const int> fds) {
    const MutexLock lock(send_mutex_);
    return wire::Send(socket_.get(), packet, fds);
  }
  absl::Status SendPacket(const wire::Packet& packet, std::span<const int> fds,
                          absl::Time deadline);
  // Adds a call; an error if the daemon is gone.
  absl::StatusOr<wire::Packet> Add(const wire::Request& request,
                                   std::vector<UniqueFd> fds,
                                   PendingCalls::Waits waits);
  absl::Status Gone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitBriefly(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitAnswer(uint64_t id, absl::Time end, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  UniqueFd socket_;
  const EventHandler on_event_;
  const GoneHandler on_gone_;
  std::atomic<bool> kept_ = false;
  Mutex send_mutex_;  // held by one sender, for at most one try

  Mutex mutex_;
  CondVar changed_;
  PendingCalls calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: no packet has arrived
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::string gone_reason_ ABSL_GUARDED_BY(mutex_);
  Shortage gone_shortage_ ABSL_GUARDED_BY(mutex_) = Shortage::kNone;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // OK: not refused
  std::thread thread_;  // last, because it uses all members above
};

// Marks `fault`, which the daemon reported, with the resource that `shortage`
// names (empty: none).
absl::Status FromDaemon(const absl::Status& fault, const std::string& shortage);

}  // namespace sluice::client
