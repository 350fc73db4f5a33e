// Parses one request of HTTP/1.1 and formats its answer; pure.
//
// The pages are few and short, so a request is GET or HEAD of a path. A body is
// not read, because every answer ends its connection.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::daemon {

// The status as in the first line of an answer.
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
  std::string path;             // begins with '/'; without the query
  bool head = false;            // HEAD: the answer without its body
  HttpStatus status = kHttpOk;  // else refused, and `why` is one line
  std::string why = {};
};

// `bytes` is all that has arrived; bytes after the empty line are ignored.
// Returns nullopt if more is needed.
std::optional<HttpRequest> ReadHttpRequest(std::string_view bytes);

// Formats the answer that ends the connection.
std::string HttpAnswer(HttpStatus status, std::string_view type,
                       std::string_view body);

}  // namespace sluice::daemon
