#include "daemon/metrics/http_address.h"

#include <fmt/format.h>

#include "absl/strings/numbers.h"
#include "daemon/metrics/http_server.h"

namespace sluice::daemon {

absl::StatusOr<HttpAddress> ParseHttpAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no address to listen on: write ADDRESS:PORT, such as "
        "127.0.0.1:9435, or \"\" for none",
        listen));
  }
  return HttpAddress{listen.substr(0, colon), port};
}

absl::Status CheckListen(const std::string& listen) {
  const auto address = ParseHttpAddress(listen);
  if (!address.ok()) return address.status();
  return HttpServer::Available();
}

}  // namespace sluice::daemon
