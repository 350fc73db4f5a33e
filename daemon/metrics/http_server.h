// Serves the daemon's pages over plain HTTP: on a TCP port, which anything may
// read, only sums; on a unix socket everything.
//
// One thread serves all connections and makes the pages: one snapshot, at most
// every 50 ms, for all requests until then. When all connections of a listener
// are in use, one is closed for a new one: the oldest that has its answer, else
// that still sends its request, else that still reads its answer. While all
// wait for a page, new ones wait in the kernel's queue. A request may take
// kReadLimit to its last byte, and writing an answer kWriteLimit: totals, so a
// client that sends a byte per second gains nothing.
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

// Checks both settings; empty strings are valid. InvalidArgument: `listen` is
// neither "ADDRESS:PORT" nor "[ADDRESS]:PORT". NotFound: there is no group
// `group`.
absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group);

struct HttpOptions {
  std::string listen;        // "ADDRESS:PORT", port 0 for any; empty: none
  std::string socket;        // path; empty: none
  std::string socket_group;  // group's name; empty: only the daemon's user
  // An earlier daemon's listening socket, used if it listens at `listen`; may
  // be empty.
  UniqueFd left = {};
};

class HttpServer {
 public:
  static constexpr absl::Duration kReadLimit = absl::Seconds(2);
  static constexpr absl::Duration kWriteLimit = absl::Seconds(5);
  // The interval of retrying a TCP port that another program holds.
  static constexpr absl::Duration kListenAgain = absl::Seconds(1);
  static constexpr size_t kMaxTcp = 128, kMaxUnix = 32;  // connections

  virtual ~HttpServer() = default;  // removes the socket

  // From now on serves pages made from `sources`, which must outlive the
  // server.
  virtual void Serve(PageSources sources) = 0;
  // Returns the address with its port. Callable from any thread.
  virtual TcpListener listener() const = 0;
  virtual bool goes_on() const = 0;
  // Calls `listening` with the TCP socket, which the server keeps: at once if
  // the server listens already, else on the server's thread when it does.
  virtual void WhenListening(std::function<void(int fd)> listening) = 0;
};

// Starts the server, which answers 503 until Serve. A TCP port that another
// program has is tried again until it is free (`listener` says why it is not).
// InvalidArgument: `listen` is malformed. NotFound, PermissionDenied: the group
// does not exist, or may not be set.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    HttpOptions options);

}  // namespace sluice::daemon
