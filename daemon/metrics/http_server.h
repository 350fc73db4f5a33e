// Serves the daemon's pages over plain HTTP/1: sums on a TCP port, which every
// program may read, and everything on a unix socket.
//
// One thread serves all connections and makes the pages. When all connections
// of a listener are in use, one is closed for a new one: the oldest that has
// its whole answer; if there is none, the oldest that still sends its request,
// else the oldest that still reads its answer. While all wait for a page, new
// ones wait in the kernel's queue.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/core/snapshot.h"
#include "daemon/metrics/pages.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

constexpr size_t kMaxHttpRequest = 8192;  // bytes, including the empty line

// GET or HEAD of a path. The body of a request is not read, because every
// answer ends its connection.
struct HttpRequest {
  std::string path = {};  // begins with '/'; without the query
  bool head = false;      // HEAD: the answer without its body
  // If not kHttpOk, the request is refused, and `why` is one line.
  HttpStatus status = kHttpOk;
  std::string why = {};
};

// Parses `bytes`, all that has arrived so far; ignores bytes after the empty
// line. Returns nullopt if the request is not complete yet.
std::optional<HttpRequest> ReadHttpRequest(std::string_view bytes);
std::string HttpAnswer(const Page& page);

// Checks two settings of [http]; each may be empty. InvalidArgument: `listen`
// is neither "ADDRESS:PORT" nor "[ADDRESS]:PORT". NotFound: no such group.
absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group);

struct HttpOptions {
  std::string listen;        // "ADDRESS:PORT", port 0 for any; empty: none
  std::string socket;        // path; empty: none
  std::string socket_group;  // group's name; empty: only the daemon's user
  // An earlier daemon's socket, used if it listens at `listen`; may be empty.
  UniqueFd left = {};
};

// Thread safety: one thread; `listener` may be called on any thread.
class HttpServer {
 public:
  // The interval of retrying a TCP port that another program holds.
  static constexpr absl::Duration kListenAgain = absl::Seconds(1);
  static constexpr size_t kMaxTcp = 128, kMaxUnix = 32;  // connections

  virtual ~HttpServer() = default;  // removes the unix socket
  // Serves pages made from `sources`, which must outlive the server.
  virtual void Serve(PageSources sources) = 0;
  virtual TcpListener listener() const = 0;
  // Calls `listening` with the TCP socket, which the server keeps: at once if
  // the server listens already, else on its thread when it begins to listen.
  virtual void WhenListening(std::function<void(int fd)> listening) = 0;
};

// Starts the server, which answers 503 until Serve. A TCP port that another
// program has is tried again until it is free (TcpListener::fault). Errors as
// CheckHttpSockets; PermissionDenied: the group may not be set.
absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    HttpOptions options);

}  // namespace sluice::daemon
