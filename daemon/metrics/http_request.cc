#include "daemon/metrics/http_request.h"

#include <fmt/format.h>

namespace sluice::daemon {

std::string_view Name(HttpStatus status) {
  switch (status) {
    case HttpStatus::kOk:
      return "OK";
    case HttpStatus::kBadRequest:
      return "Bad Request";
    case HttpStatus::kNotFound:
      return "Not Found";
    case HttpStatus::kMethodNotAllowed:
      return "Method Not Allowed";
    case HttpStatus::kRequestTimeout:
      return "Request Timeout";
    case HttpStatus::kHeadersTooLarge:
      return "Request Header Fields Too Large";
    case HttpStatus::kUnavailable:
      return "Service Unavailable";
  }
  return "";
}

std::variant<HttpNeedsMore, HttpRequest, HttpRefusal> ReadHttpRequest(
    std::string_view bytes) {
  const std::string_view within = bytes.substr(0, kMaxHttpRequest);
  if (within.find("\r\n\r\n") == within.npos) {
    if (bytes.size() < kMaxHttpRequest) return HttpNeedsMore{};
    return HttpRefusal{
        HttpStatus::kHeadersTooLarge,
        fmt::format("the request is longer than {} bytes", kMaxHttpRequest)};
  }
  const std::string_view line = within.substr(0, within.find("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == last || !line.substr(last + 1).starts_with("HTTP/1.")) {
    return HttpRefusal{HttpStatus::kBadRequest,
                       "the first line is not METHOD PATH HTTP/1.1"};
  }
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") {
    return HttpRefusal{HttpStatus::kMethodNotAllowed,
                       "only GET and HEAD are served"};
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!target.starts_with('/')) {
    return HttpRefusal{HttpStatus::kBadRequest,
                       "what is asked for is no path such as /metrics"};
  }
  return HttpRequest{method == "HEAD",
                     std::string(target.substr(0, target.find_first_of("?#")))};
}

std::string HttpHead(HttpStatus status, std::string_view type, size_t bytes) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\n"
      "Connection: close\r\n{}\r\n",
      static_cast<int>(status), Name(status), type, bytes,
      status == HttpStatus::kMethodNotAllowed ? "Allow: GET, HEAD\r\n" : "");
}

}  // namespace sluice::daemon
