// In the place of http_server.cc where SLUICE_ENABLE_HTTP is off.
#include "daemon/metrics/http_server.h"

namespace sluice::daemon {

struct HttpServer::Server {};

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;

namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError(
      "this sluiced is the Python wheel's, for daemons of users, and was built "
      "without HTTP: set [http] listen to \"\", or use an installed sluiced");
}

}  // namespace

absl::Status CheckHttp(const HttpOptions& options) {
  if (options.listen.empty() && options.socket_group.empty()) {
    return absl::OkStatus();
  }
  return NotBuilt();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions) {
  return NotBuilt();
}

TcpListener HttpServer::listener() const { return {}; }

bool HttpServer::goes_on() const { return false; }

void HttpServer::WhenListening(std::function<void(int fd)>) {}

void HttpServer::Serve(PageSources) {}

}  // namespace sluice::daemon
