// A daemon that keeps what jobs hold, grants nothing, and reports why.
//
// A daemon freezes at its start if it cannot take over what an earlier one left
// (a state of another version, a damaged state, missing memory), or if too many
// daemons died. If it ended instead, it would be restarted again and again; if
// it started without the state, every job would end. A frozen daemon reads no
// request of a rank, opens no device and changes nothing of what is kept, so
// the cause of the fault cannot harm it.
//
// Thread safety: one thread; gRPC's threads answer administrators.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/service/admin/admin_server.h"
#include "daemon/service/session_listener.h"
#include "daemon/service/threads/closer.h"
#include "daemon/service/threads/loop.h"
#include "daemon/store/descriptor_store.h"
#include "daemon/store/starter.h"
#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Returns a frozen daemon's answer to any request.
absl::Status Frozen(const std::string& why);

class FrozenDaemon {
 public:
  struct Options {
    std::string why;  // one line
    std::string runtime_dir;
    std::string session_dir;
    Starter starter;    // `stored` has the descriptors to keep
    UniqueFd listener;  // from TakeHandedListener; empty: the kept socket
    const Clock* clock = nullptr;  // outlives the daemon
  };
  // Tells the starter that the daemon is up, and why it is frozen.
  static absl::StatusOr<std::unique_ptr<FrozenDaemon>> Start(Options options);

  // Runs until a signal. Returns true if a keeper ended the service, so that
  // nothing is left for another daemon.
  bool Run();

 private:
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
  std::unique_ptr<AdminSocket> admin_;
  std::unique_ptr<SessionListener> listener_;
  UniqueFd signals_;
  absl::Duration heartbeat_ = absl::InfiniteDuration();
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  absl::Time end_at_ = absl::InfiniteFuture();
  bool service_ended_ = false;
};

}  // namespace sluice::daemon
