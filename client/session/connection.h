// Requests, replies and events over one session socket. Internal to client.
//
// How it works. A thread of its own receives; Call sends one request and
// sleeps until its reply (all parts of it) has come. Events go to the handler
// on the receiving thread. When the daemon closes the socket every waiting and
// later Call is Unavailable.
//
// Thread safety: safe. The handlers run on the receiving thread and must not
// call back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/mutex.h"
#include "proto/base/shortage.h"
#include "proto/wire.h"

namespace sluice::client {

class Connection {
 public:
  // An Event with its descriptors.
  using EventHandler = std::function<void(wire::Message)>;
  // The daemon closed the session; last call.
  using GoneHandler = std::function<void(const std::string& reason)>;

  static absl::StatusOr<std::unique_ptr<Connection>> Open(
      const std::string& socket, EventHandler on_event, GoneHandler on_gone);
  ~Connection();

  // Sends and waits for the reply. A reply in parts comes as all its parts.
  // The daemon's Error becomes the Status it stands for, also the one that it
  // says to nobody's request before it closes: why it takes no session.
  absl::StatusOr<std::vector<wire::Message>> Call(
      const wire::Request& request, std::span<const int> fds = {},
      absl::Duration timeout = kCallTimeout);

  // Sends and does not wait; the reply is dropped when it comes.
  // ResourceExhausted: the daemon does not read, nothing was sent.
  absl::Status Post(const wire::Request& request);

  // Ends the session: the daemon takes back what it holds.
  void Close();

  static constexpr absl::Duration kCallTimeout = absl::Seconds(60);

 private:
  struct PendingCall {
    std::vector<wire::Message> parts;
    bool complete = false;
  };

  Connection(UniqueFd socket, EventHandler on_event, GoneHandler on_gone);
  void Run();
  void OnReply(wire::Message message);
  void ReturnLostLease(const wire::Message& message);
  void Disconnect(const std::string& reason,
                  Shortage shortage = Shortage::kNone);
  absl::Status SendPacket(const wire::Packet& packet, std::span<const int> fds,
                          absl::Time deadline);
  absl::Status Gone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitBriefly(const PendingCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  UniqueFd socket_;
  const EventHandler on_event_;
  const GoneHandler on_gone_;
  Mutex send_mutex_;  // packets leave whole, one after the other

  Mutex mutex_;
  CondVar changed_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, PendingCall> calls_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::string gone_reason_ ABSL_GUARDED_BY(mutex_);
  Shortage gone_shortage_ ABSL_GUARDED_BY(mutex_) = Shortage::kNone;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // OK: it was not
  std::thread thread_;  // last: it uses all of the above
};

// A fault that the daemon reported, with the word it gave for what ran out
// (empty: nothing).
absl::Status FromDaemon(const absl::Status& fault, const std::string& shortage);

}  // namespace sluice::client
