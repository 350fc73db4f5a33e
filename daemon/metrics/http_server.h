// `/metrics`, `/status.json` and the status page `/`, over plain HTTP.
//
// Meant for the machine itself (127.0.0.1): it has no users and no secrets,
// and shows everything. Threads of its own, few; a reader that is slow is cut
// off after two seconds and never holds up the daemon.
//
// Thread safety: Start and destruction from one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/snapshot.h"

namespace sluice::daemon {

// InvalidArgument: not "ADDRESS:PORT". Unimplemented: see
// HttpServer::Available.
absl::Status CheckListen(const std::string& listen);

class HttpServer {
 public:
  using Source = std::function<absl::StatusOr<Snapshot>()>;

  // Unimplemented in a daemon that was built without HTTP (the wheel's).
  static absl::Status Available();

  // `listen` is "ADDRESS:PORT", port 0 for any. InvalidArgument: not of that
  // form; AlreadyExists: the port is taken; Unimplemented: see Available.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, Source source);
  ~HttpServer();

  const std::string& address() const { return address_; }  // with the port

 private:
  struct Server;
  HttpServer();

  std::unique_ptr<Server> server_;
  std::string address_;
};

}  // namespace sluice::daemon
