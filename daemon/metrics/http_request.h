// One request of HTTP/1.1, read from bytes as they come, within bounds.
//
// Why our own: the packaged libraries bound neither a line, nor the headers,
// nor a chunked body, so one connection could fill the daemon's memory. What
// is served are a few short pages, so whatever is not GET or HEAD of a path is
// refused, and so is every body.
//
// Thread safety: none needed; each object belongs to one thread. No sockets.
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
  kContentTooLarge = 413,
  kUriTooLong = 414,
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
  std::string why;  // one printable line
};

class HttpReader {
 public:
  // CR LF is not counted in the first, and is in the second.
  static constexpr size_t kMaxLineBytes = 2048;
  static constexpr size_t kMaxHeaderBytes = 8192;
  static constexpr size_t kMaxHeaders = 64;

  struct NeedsMore {};
  using Result = std::variant<NeedsMore, HttpRequest, HttpRefusal>;

  // The next bytes. After anything but NeedsMore it must not be called again;
  // bytes behind the request's end are ignored.
  Result Take(std::string_view bytes);

 private:
  size_t Room() const;
  HttpRefusal TooLong() const;
  Result TakeLine();
  Result TakeRequestLine();
  Result TakeHeader();
  Result End();

  enum class Part { kRequestLine, kHeaders };
  Part part_ = Part::kRequestLine;
  std::string line_;  // so far; of a whole one without its end
  size_t header_bytes_ = 0;
  size_t headers_ = 0;
  int hosts_ = 0;
  HttpRequest request_;
};

// The head of an answer with `bytes` bytes of `type`, after which the
// connection is closed.
std::string HttpHead(HttpStatus status, std::string_view type, size_t bytes);

}  // namespace sluice::daemon
