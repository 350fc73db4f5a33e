// Starts the daemon, keeps its descriptors, and restarts it.
//
// One thread handles messages, signals and the daemon's death. Messages come
// first, so that what a daemon sent before its death is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/keeper/daemon_process.h"
#include "daemon/keeper/notify_receiver.h"
#include "daemon/runtime/runtime_dir.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Keeper {
 public:
  struct Options {
    std::string runtime_dir;
    std::vector<std::string> argv;  // the daemon's command
    int64_t capacity = 0;
  };
  // Takes the folder's lock, makes the socket, and blocks the signals that Run
  // reads. AlreadyExists: another keeper runs there.
  static absl::StatusOr<std::unique_ptr<Keeper>> Make(Options options);

  // Runs until the daemon has ended for good. Returns the keeper's exit status.
  int Run();

 private:
  static constexpr int kMessagesPerTurn = 1024;
  // How long a daemon may take to end after the signal.
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  Keeper(Options options, RuntimeLock lock, NotifyReceiver receiver,
         UniqueFd signals);
  void Start();
  void ReapEnded();
  void WaitForSomething();
  void ReadMessages();
  void Take(NotifyReceiver::Datagram datagram);
  void Refuse(std::string_view why);
  void ReadSignals();
  void EndIfLate();
  std::optional<int> OnDeath();

  const Options options_;
  const RuntimeLock lock_;
  NotifyReceiver receiver_;
  const UniqueFd signals_;  // a signalfd
  KeptDescriptors kept_;
  RestartPolicy policy_;
  std::optional<DaemonProcess> daemon_;  // unset: none runs
  // The previous daemon, until it is reaped.
  std::optional<DaemonProcess> ended_;
  bool asked_to_end_ = false;
  absl::Time kill_at_ = absl::InfiniteFuture();
  absl::Time start_at_ = absl::InfinitePast();
  uint64_t refused_ = 0;
};

}  // namespace sluice::daemon
