// One request of HTTP/1.1, and the text of its answer; pure.
//
// The pages are few and short, so a request is GET or HEAD of a path; a body is
// not read, since every answer ends its connection.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::daemon {

// As it stands in the first line of an answer.
using HttpStatus = std::string_view;
inline constexpr HttpStatus kHttpOk = "200 OK",
                            kHttpBadRequest = "400 Bad Request",
                            kHttpNotFound = "404 Not Found",
                            kHttpNotAllowed = "405 Method Not Allowed",
                            kHttpTimeout = "408 Request Timeout",
                            kHttpTooLarge =
                                "431 Request Header Fields Too Large",
                            kHttpUnavailable = "503 Service Unavailable";

constexpr size_t kMaxHttpRequest = 8192;  // bytes, with the empty line

struct HttpRequest {
  std::string path;             // begins with '/'; without the query
  bool head = false;            // HEAD: the same answer without its body
  HttpStatus status = kHttpOk;  // else it is refused, and `why` is one line
  std::string why = {};
};

// `bytes`: all that came so far; bytes after the empty line are ignored.
// Nullopt: more is needed.
std::optional<HttpRequest> ReadHttpRequest(std::string_view bytes);

// The answer with which the connection ends.
std::string HttpAnswer(HttpStatus status, std::string_view type,
                       std::string_view body);

}  // namespace sluice::daemon
