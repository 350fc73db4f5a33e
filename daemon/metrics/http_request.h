// One request of HTTP/1.1, and the head of its answer.
//
// The pages are few and short, so a request is GET or HEAD of a path; a body is
// not read, since every answer ends its connection.
//
// Thread safety: pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

namespace sluice::daemon {

enum class HttpStatus {
  kOk = 200,
  kBadRequest = 400,
  kNotFound = 404,
  kMethodNotAllowed = 405,
  kRequestTimeout = 408,
  kHeadersTooLarge = 431,
  kUnavailable = 503,
};
std::string_view Name(HttpStatus status);  // "Not Found"

struct HttpRequest {
  bool head = false;  // HEAD: the same answer without its body
  std::string path;   // begins with '/'; without the query
};
struct HttpRefusal {
  HttpStatus status = HttpStatus::kBadRequest;
  std::string why;  // one line
};
struct HttpNeedsMore {};

constexpr size_t kMaxHttpRequest = 8192;  // bytes, with the empty line

// `bytes`: all that came so far; bytes after the empty line are ignored.
std::variant<HttpNeedsMore, HttpRequest, HttpRefusal> ReadHttpRequest(
    std::string_view bytes);

// Heads an answer of `bytes` bytes of `type`, after which the connection ends.
std::string HttpHead(HttpStatus status, std::string_view type, size_t bytes);

}  // namespace sluice::daemon
