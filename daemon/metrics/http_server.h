// The daemon's pages over plain HTTP, on a TCP port (sums, for anybody who
// reaches it) and on a unix socket (everything, for those who may open it).
//
// How it works. One thread serves all connections by epoll; pages are made on
// another (page_maker.h). Each listener has a bounded number of connections.
// When all are taken, the oldest that is still sending its request, or still
// reads its answer, makes room; while all wait for a page, new ones wait in
// the kernel's queue. A request has kReadLimit from the connection's begin
// until its last byte, an answer kWriteLimit: totals, so that a byte a second
// gains nothing.
//
// Thread safety: Start, Serve and destruction from one thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/metrics/pages.h"

namespace sluice::daemon {

struct HttpOptions {
  std::string listen;        // "ADDRESS:PORT", port 0 for any; empty: none
  std::string socket;        // path; empty: none
  std::string socket_group;  // a group's name; empty: the daemon's user only
};

// Everything that Start would refuse but what another program has, or a socket
// would tell. InvalidArgument: `listen`; NotFound: the group; Unimplemented:
// see HttpServer::Available.
absl::Status CheckHttp(const HttpOptions& options);

class HttpServer {
 public:
  static constexpr absl::Duration kReadLimit = absl::Seconds(2);
  static constexpr absl::Duration kWriteLimit = absl::Seconds(5);
  static constexpr size_t kMaxTcp = 128;  // connections
  static constexpr size_t kMaxUnix = 32;

  // Unimplemented in a daemon that was built without HTTP (the wheel's).
  static absl::Status Available();

  // Serves at once, but says 503 until Serve. InvalidArgument: `listen` is not
  // of that form; AlreadyExists: the port is taken; NotFound,
  // PermissionDenied: of the group; Unimplemented: see Available.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HttpOptions& options);
  ~HttpServer();  // removes the socket

  // What pages are made of from now on; it outlives the server.
  void Serve(PageSources sources);

  const std::string& address() const { return address_; }  // with the port

 private:
  struct Server;
  HttpServer();

  std::unique_ptr<Server> server_;
  std::string address_;  // empty: no TCP
};

}  // namespace sluice::daemon
