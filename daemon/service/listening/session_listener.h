// The session socket: whose it is, and that nobody who connects is left
// unheard.
//
// Whose. Where who started the process handed a socket on (daemon/store), that
// one is served, and its path is its maker's: it is never made or removed here.
// Else the one that an earlier daemon left is, while its path is there; else a
// new one is made. Whoever connects while there is no daemon waits at a socket
// that was handed on or kept.
//
// Shortage. Where no descriptor is free to accept with, the spare one is given
// up to say so (spare_fd.h). Where not even that helps, or too many sockets
// wait to be closed, the socket is left alone for kPause: a connection that
// waits there would wake the loop without end.
//
// Thread safety: loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/service/closer.h"
#include "daemon/service/handover.h"
#include "daemon/service/log/event_writer.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/spare_fd.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class SessionListener {
 public:
  static constexpr absl::Duration kPause = absl::Milliseconds(5);

  // Takes the socket of who connected, or leaves it and says why, which the
  // peer is told in one line.
  using Accepted = std::function<absl::Status(UniqueFd& socket)>;

  struct Options {
    std::string path;
    int mode = 0666;       // of a socket that is made
    Loop* loop = nullptr;  // these three outlive it
    Closer* closer = nullptr;
    EventWriter* events = nullptr;  // told whom it refuses; null: nobody is
    Accepted accepted;
  };

  // `handed` (TakeHandedListener), if it is one, the one in `handover`, or a
  // new one. AlreadyExists: another daemon serves at that path.
  static absl::StatusOr<std::unique_ptr<SessionListener>> Open(
      Options options, UniqueFd handed, Handover& handover);
  // `socket` as it is. `stays`: its path is its maker's.
  static absl::StatusOr<std::unique_ptr<SessionListener>> Of(Options options,
                                                             UniqueFd socket,
                                                             bool stays);
  ~SessionListener();
  SessionListener(const SessionListener&) = delete;

  // From here on accepts: first whoever waits at the socket that an earlier
  // daemon made, where one was handed on since.
  void Start();
  // Accepts nobody any more: whoever connects waits for the next daemon.
  void Stop();
  // Somebody has the socket for the next daemon: Remove does nothing.
  void LeavePath() { stays_ = true; }
  // Ends it, and removes its path; whoever was not accepted sees the end.
  void Remove();
  int fd() const { return socket_.get(); }

  // When Expire wants to be called next; InfiniteFuture: it need not.
  absl::Time deadline() const {
    return again_at_.value_or(absl::InfiniteFuture());
  }
  void Expire(absl::Time now);

 private:
  explicit SessionListener(Options options) : options_(std::move(options)) {}
  void UseHanded(UniqueFd handed, UniqueFd kept, Handover& handover);
  absl::Status UseOwn(UniqueFd kept, Handover& handover);
  void Accept();
  // False: nobody waits at `listener`, or none can be had.
  bool AcceptOne(int listener);
  void Pause();
  // Accepts one and refuses it, where no descriptor is free: by the spare one.
  void TurnAway(int listener);
  void Refuse(UniqueFd socket, const absl::Status& why);

  const Options options_;
  UniqueFd socket_;
  UniqueFd earlier_;  // of before a socket was handed on
  bool stays_ = false;
  SpareFd spare_;
  std::optional<absl::Time> again_at_;  // it pauses until then
};

}  // namespace sluice::daemon
