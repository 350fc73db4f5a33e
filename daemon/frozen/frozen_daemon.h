// A daemon that keeps what jobs hold, grants nothing, and says why.
//
// A daemon is frozen at its start if it cannot go on from what an earlier
// daemon left (another version's state, a damaged one, missing memory), or if
// too many daemons died. If it ended instead it would be started again and
// again, and if it began anew every job would end. It reads no rank's requests,
// opens no device and changes nothing of what is kept, so whatever was wrong
// cannot harm it.
//
// Thread safety: one thread; gRPC's threads answer administrators.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/service/closer.h"
#include "daemon/service/session_listener.h"
#include "daemon/service/threads/loop.h"
#include "daemon/store/descriptor_store.h"
#include "daemon/store/starter.h"
#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// The answer of a frozen daemon to any request.
absl::Status Frozen(const std::string& why);

class FrozenDaemon {
 public:
  struct Options {
    std::string why;  // one line
    std::string runtime_dir;
    std::string session_dir;
    Starter starter;    // `stored` has what it keeps
    UniqueFd listener;  // from TakeHandedListener; empty: the kept one
    const Clock* clock = nullptr;  // outlives it
  };
  // Tells the starter that the daemon is up, and why it is frozen.
  static absl::StatusOr<std::unique_ptr<FrozenDaemon>> Start(Options options);

  // Runs until a signal. Returns true if a keeper ended the service and another
  // daemon must find nothing; else everything stays for the next daemon.
  bool Run();

 private:
  struct Admin;
  explicit FrozenDaemon(Options options) : options_(std::move(options)) {}
  absl::Status Prepare();
  absl::Status Listen();
  void OnSignal();
  absl::Time NextDeadline() const;
  void Expire();

  const Options options_;
  std::unique_ptr<Loop> loop_;
  Closer closer_;
  std::unique_ptr<DescriptorStore> store_;
  std::shared_ptr<Admin> admin_;  // the administrators' service
  // Null if none was handed on or kept.
  std::unique_ptr<SessionListener> listener_;
  UniqueFd signals_;
  absl::Duration heartbeat_ = absl::InfiniteDuration();
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  absl::Time end_at_ = absl::InfiniteFuture();  // whether answered or not
  bool service_ended_ = false;
};

}  // namespace sluice::daemon
