#include "daemon/metrics/http_request.h"

#include <fmt/format.h>

namespace sluice::daemon {

std::optional<HttpRequest> ReadHttpRequest(std::string_view bytes) {
  const auto refused = [](HttpStatus status, std::string why) {
    return HttpRequest{{}, false, status, std::move(why)};
  };
  const std::string_view within = bytes.substr(0, kMaxHttpRequest);
  if (within.find("\r\n\r\n") == within.npos) {
    if (bytes.size() < kMaxHttpRequest) return std::nullopt;
    return refused(
        kHttpTooLarge,
        fmt::format("the request is longer than {} bytes", kMaxHttpRequest));
  }
  const std::string_view line = within.substr(0, within.find("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == last || !line.substr(last + 1).starts_with("HTTP/1.")) {
    return refused(kHttpBadRequest,
                   "the first line is not METHOD PATH HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") {
    return refused(kHttpNotAllowed, "only GET and HEAD are served");
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!target.starts_with('/')) {
    return refused(kHttpBadRequest,
                   "what is asked for is no path such as /metrics");
  }
  return HttpRequest{std::string(target.substr(0, target.find_first_of("?#"))),
                     method == "HEAD"};
}

std::string HttpAnswer(HttpStatus status, std::string_view type,
                       std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\n"
      "Connection: close\r\n{}\r\n{}",
      status, type, body.size(),
      status == kHttpNotAllowed ? "Allow: GET, HEAD\r\n" : "", body);
}

}  // namespace sluice::daemon
