// The session socket. A socket that the starter handed over is served as it is;
// its path belongs to its maker, and is never made or removed here. Else the
// socket that an earlier daemon left is served, if its path exists, else a new
// one. Clients that connect while there is no daemon wait at a socket that was
// handed over or left.
//
// No connection is left without an answer. If no descriptor is free, the spare
// one (SpareFd) is used to refuse the connection in one line. If that fails
// too, or if too many sockets wait to be closed, the socket is not polled for
// kPause, because a waiting connection would wake the loop without end.
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
#include "daemon/service/log/event_writer.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/threads/closer.h"
#include "daemon/service/threads/loop.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class SessionListener {
 public:
  static constexpr absl::Duration kPause = absl::Milliseconds(5);

  // Moves the connection's socket and returns OK, or leaves the socket and
  // returns the reason, which is sent to the peer in one line.
  using Accepted = std::function<absl::Status(UniqueFd& socket)>;

  struct Options {
    std::string path;
    int mode = 0666;  // of a newly made socket
    // `loop`, `closer` and `events` must outlive the listener.
    Loop* loop = nullptr;
    Closer* closer = nullptr;
    EventWriter* events = nullptr;  // logs refusals; may be null
    Accepted accepted;
  };

  // Serves `handed` (TakeHandedListener) if it is set, else the socket in
  // `handover`, else a new one. AlreadyExists: another daemon serves that path.
  static absl::StatusOr<std::unique_ptr<SessionListener>> Open(
      Options options, UniqueFd handed, Handover& handover);
  // Serves `socket` as it is. `stays`: its path belongs to another process and
  // is not removed.
  static absl::StatusOr<std::unique_ptr<SessionListener>> Of(Options options,
                                                             UniqueFd socket,
                                                             bool stays);
  ~SessionListener();
  SessionListener(const SessionListener&) = delete;

  // Starts to accept. If the earlier daemon had another socket, first accepts
  // the connections that wait at that socket.
  void Start();
  // Stops accepting. Clients that connect wait for the next daemon.
  void Stop();
  // Makes Remove do nothing: the store keeps the socket for the next daemon.
  void LeavePath() { stays_ = true; }
  // Removes the path, and closes the socket and connections that wait there.
  void Remove();
  int fd() const { return socket_.get(); }

  absl::Time deadline() const {
    return again_at_.value_or(absl::InfiniteFuture());
  }
  void Expire(absl::Time now);

 private:
  SessionListener(Options options, UniqueFd socket, bool stays)
      : options_(std::move(options)),
        socket_(std::move(socket)),
        stays_(stays) {}
  void Accept();
  // Returns false if no connection waits at `listener`, or accepting it fails.
  bool AcceptOne(int listener);
  void Pause();
  void TurnAway(int listener);
  void Refuse(UniqueFd socket, const absl::Status& why);

  const Options options_;
  UniqueFd socket_;
  UniqueFd earlier_;  // the earlier daemon's, if another one is served
  bool stays_;
  SpareFd spare_;
  std::optional<absl::Time> again_at_;  // end of the pause
};

}  // namespace sluice::daemon
