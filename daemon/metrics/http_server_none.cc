// In the place of http_server.cc where SLUICE_ENABLE_HTTP is off.
#include "daemon/metrics/http_address.h"
#include "daemon/metrics/http_server.h"
#include "proto/base/status.h"

namespace sluice::daemon {

struct HttpServer::Server {};

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;

absl::Status HttpServer::Available() {
  return absl::UnimplementedError(
      "this sluiced is the Python wheel's, for private daemons, and was built "
      "without HTTP: set [http] listen to \"\", or use an installed sluiced");
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& listen, Source) {
  SLUICE_RETURN_IF_ERROR(ParseHttpAddress(listen).status());
  return Available();
}

}  // namespace sluice::daemon
