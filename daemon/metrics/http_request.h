// Parses one request of HTTP/1.1 and formats its answer. Pure.
//
// The pages are few and short, so only GET and HEAD of a path are supported.
// The body of a request is not read, because every answer ends its connection.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::daemon {

using HttpStatus = std::string_view;
inline constexpr HttpStatus kHttpOk = "200 OK",
                            kHttpBadRequest = "400 Bad Request",
                            kHttpNotFound = "404 Not Found",
                            kHttpNotAllowed = "405 Method Not Allowed",
                            kHttpTimeout = "408 Request Timeout",
                            kHttpTooLarge =
                                "431 Request Header Fields Too Large",
                            kHttpUnavailable = "503 Service Unavailable";

constexpr size_t kMaxHttpRequest = 8192;  // bytes, including the empty line

struct HttpRequest {
  std::string path;   // begins with '/'; without the query
  bool head = false;  // HEAD: the answer without its body
  // If not kHttpOk, the request is refused, and `why` is one line.
  HttpStatus status = kHttpOk;
  std::string why = {};
};

// Parses `bytes`, all that has arrived so far; ignores bytes after the empty
// line. Returns nullopt if the request is not complete yet.
std::optional<HttpRequest> ReadHttpRequest(std::string_view bytes);

std::string HttpAnswer(HttpStatus status, std::string_view type,
                       std::string_view body);

}  // namespace sluice::daemon
