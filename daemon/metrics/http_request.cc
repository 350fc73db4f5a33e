#include "daemon/metrics/http_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "absl/strings/match.h"

namespace sluice::daemon {
namespace {

// RFC 9110, 5.6.2.
bool IsToken(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') ||
           ('0' <= c && c <= '9') || kMarks.find(c) != kMarks.npos;
  });
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

bool IsVisible(char c) { return 0x21 <= c && c <= 0x7e; }

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// absl's own, for std::string_view.
bool IsName(std::string_view text, const char* name) {
  return absl::EqualsIgnoreCase({text.data(), text.size()}, name);
}

HttpRefusal Bad(std::string why) {
  return {HttpStatus::kBadRequest, std::move(why)};
}

}  // namespace

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
    case HttpStatus::kContentTooLarge:
      return "Content Too Large";
    case HttpStatus::kUriTooLong:
      return "URI Too Long";
    case HttpStatus::kHeadersTooLarge:
      return "Request Header Fields Too Large";
    case HttpStatus::kUnavailable:
      return "Service Unavailable";
  }
  return "";
}

HttpReader::Result HttpReader::Take(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const bool whole = end != bytes.npos;
    const size_t count = whole ? end + 1 : bytes.size();
    if (line_.size() + count > Room()) return TooLong();
    line_ += bytes.substr(0, count);
    bytes.remove_prefix(count);
    if (!whole) break;
    Result result = TakeLine();
    if (!std::holds_alternative<NeedsMore>(result)) return result;
    line_.clear();
  }
  return NeedsMore{};
}

size_t HttpReader::Room() const {
  return part_ == Part::kRequestLine ? kMaxLineBytes + 2
                                     : kMaxHeaderBytes - header_bytes_;
}

HttpRefusal HttpReader::TooLong() const {
  if (part_ == Part::kRequestLine) {
    return {
        HttpStatus::kUriTooLong,
        fmt::format("the request line is longer than {} bytes", kMaxLineBytes)};
  }
  return {HttpStatus::kHeadersTooLarge,
          fmt::format("the headers are longer than {} bytes", kMaxHeaderBytes)};
}

HttpReader::Result HttpReader::TakeLine() {
  header_bytes_ += part_ == Part::kHeaders ? line_.size() : 0;
  if (!line_.ends_with("\r\n")) {
    return Bad("a line does not end with CR LF");
  }
  line_.resize(line_.size() - 2);
  if (std::any_of(line_.begin(), line_.end(), IsControl)) {
    return Bad("a line holds a control character");
  }
  if (part_ == Part::kRequestLine) return TakeRequestLine();
  return line_.empty() ? End() : TakeHeader();
}

HttpReader::Result HttpReader::TakeRequestLine() {
  const std::string_view line = line_;
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == line.npos || first == last) {
    return Bad("the first line is not METHOD PATH HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!IsToken(method) || line.substr(last + 1) != "HTTP/1.1") {
    return Bad("the first line is not METHOD PATH HTTP/1.1");
  }
  if (method != "GET" && method != "HEAD") {
    return HttpRefusal{HttpStatus::kMethodNotAllowed,
                       "only GET and HEAD are served"};
  }
  if (!target.starts_with('/') ||
      !std::all_of(target.begin(), target.end(), IsVisible)) {
    return Bad("what is asked for is no path such as /metrics");
  }
  request_.head = method == "HEAD";
  request_.path = target.substr(0, target.find_first_of("?#"));
  part_ = Part::kHeaders;
  return NeedsMore{};
}

HttpReader::Result HttpReader::TakeHeader() {
  if (++headers_ > kMaxHeaders) {
    return HttpRefusal{
        HttpStatus::kHeadersTooLarge,
        fmt::format("there are more than {} headers", kMaxHeaders)};
  }
  const std::string_view line = line_;
  const size_t colon = line.find(':');
  if (colon == line.npos || !IsToken(line.substr(0, colon))) {
    return Bad("a header is not NAME: VALUE");
  }
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = Trimmed(line.substr(colon + 1));
  if (IsName(name, "Host")) ++hosts_;
  // What it says of its body is not believed, so no body is read.
  if (IsName(name, "Transfer-Encoding") ||
      (IsName(name, "Content-Length") && value != "0")) {
    return HttpRefusal{HttpStatus::kContentTooLarge,
                       "a request with a body is not served"};
  }
  return NeedsMore{};
}

HttpReader::Result HttpReader::End() {
  if (hosts_ != 1) return Bad("there must be one Host header");
  return std::move(request_);
}

std::string HttpHead(HttpStatus status, std::string_view type, size_t bytes) {
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\n"
      "Connection: close\r\n",
      static_cast<int>(status), Name(status), type, bytes);
  if (status == HttpStatus::kMethodNotAllowed) head += "Allow: GET, HEAD\r\n";
  return head + "\r\n";
}

}  // namespace sluice::daemon
