// Serves the daemon's pages over plain HTTP, on a TCP port (sums, for
// everything that can reach it) and on a unix socket (everything, for users
// that may open it).
//
// How it works. One thread serves all connections and makes the pages: one
// snapshot, at most every 50 ms, for all requests until then. If the daemon's
// loop does not answer, each snapshot takes at most two seconds. Each listener
// has a bounded number of connections. When all are taken, one is closed for a
// new one: the oldest that has its answer, else the oldest that still sends its
// request, else the oldest that still reads its answer. While all wait for a
// page, new connections wait in the kernel's queue. A request has kReadLimit
// from the start of the connection to its last byte, an answer kWriteLimit.
// These are totals, so sending a byte per second gains nothing.
//
// Thread safety: Start, Serve and destruction from one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/snapshot.h"
#include "daemon/metrics/pages.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

struct HttpOptions {
  std::string listen;        // "ADDRESS:PORT", port 0 for any; empty: none
  std::string socket;        // path; empty: none
  std::string socket_group;  // group's name; empty: only the daemon's user
  // An earlier daemon's listening socket, used if it listens at `listen`; or
  // empty.
  UniqueFd left = {};
};

// Checks all that Start would refuse, except what only a socket would tell.
// InvalidArgument: `listen`; NotFound: the group.
absl::Status CheckHttp(const HttpOptions& options);

class HttpServer {
 public:
  static constexpr absl::Duration kReadLimit = absl::Seconds(2);
  static constexpr absl::Duration kWriteLimit = absl::Seconds(5);
  // The interval of retrying a TCP port that another program holds.
  static constexpr absl::Duration kListenAgain = absl::Seconds(1);
  static constexpr size_t kMaxTcp = 128, kMaxUnix = 32;  // connections

  virtual ~HttpServer() = default;  // removes the socket

  // Serves pages made from `sources`, which outlives the server, from now on.
  virtual void Serve(PageSources sources) = 0;
  // Includes the port. Callable from any thread.
  virtual TcpListener listener() const = 0;
  // Returns whether it listens with HttpOptions::left.
  virtual bool goes_on() const = 0;
  // Calls `listening` with the TCP socket, which stays the server's: at once if
  // it listens, else on the server's thread as soon as it does.
  virtual void WhenListening(std::function<void(int fd)> listening) = 0;
};

// Serves at once, but says 503 until Serve. A TCP port that is taken is tried
// again until it is free (`listener` says why). InvalidArgument: `listen` is
// not of that form; NotFound, PermissionDenied: of the group.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    HttpOptions options);

}  // namespace sluice::daemon
