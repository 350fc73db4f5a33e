// In the place of http_server.cc where SLUICE_ENABLE_HTTP is off.
#include "daemon/metrics/http_server.h"

namespace sluice::daemon {

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(HttpOptions) {
  return absl::UnimplementedError(
      "this sluiced is the Python wheel's, for daemons of users, and was built "
      "without HTTP: set [http] listen to \"\", or use an installed sluiced");
}

absl::Status CheckHttp(const HttpOptions& options) {
  const bool none = options.listen.empty() && options.socket_group.empty();
  return none ? absl::OkStatus() : StartHttpServer({}).status();
}

}  // namespace sluice::daemon
