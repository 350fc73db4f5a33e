#include "daemon/metrics/http_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "daemon/metrics/http_server.h"

namespace sluice::daemon {
namespace {

// What a peer may still send after its answer is there.
constexpr absl::Duration kEndLimit = absl::Seconds(1);
constexpr size_t kMaxThrownAway = 1 << 20;

}  // namespace

HttpConnection::HttpConnection(UniqueFd socket, Audience audience,
                               absl::Time now)
    : socket_(std::move(socket)),
      deadline_(now + HttpServer::kReadLimit),
      key_(PageName::kStatusPage, audience) {}

// One read at a time, so that no sender keeps the thread from the others.
void HttpConnection::Read(absl::Time now) {
  std::array<char, 16 << 10> buffer;
  const ssize_t got =
      recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    // Its end of sending, or of everything: an answer is still written.
    if (got < 0 || state_ == State::kReading || state_ == State::kEnding) {
      state_ = State::kOver;
    }
    return;
  }
  if (state_ == State::kReading) {
    return TakeBytes({buffer.data(), static_cast<size_t>(got)}, now);
  }
  thrown_away_ += static_cast<size_t>(got);
  if (thrown_away_ > kMaxThrownAway) state_ = State::kOver;
}

void HttpConnection::TakeBytes(std::string_view bytes, absl::Time now) {
  HttpReader::Result result = reader_.Take(bytes);
  if (const auto* refusal = std::get_if<HttpRefusal>(&result)) {
    return Refuse(refusal->status, refusal->why, now);
  }
  const auto* request = std::get_if<HttpRequest>(&result);
  if (request == nullptr) return;
  head_only_ = request->head;
  const auto page = FindPage(request->path);
  if (!page) {
    return Refuse(HttpStatus::kNotFound, "there are only " + PagePaths(), now);
  }
  key_.first = *page;
  state_ = State::kWaiting;
  deadline_ = absl::InfiniteFuture();  // the maker's time is bounded
}

void HttpConnection::Refuse(HttpStatus status, std::string_view why,
                            absl::Time now) {
  Answer(std::make_shared<const Page>(
             LinePage(status, fmt::format("{} {}: {}", static_cast<int>(status),
                                          Name(status), why))),
         now);
}

void HttpConnection::Answer(std::shared_ptr<const Page> page, absl::Time now) {
  head_ = HttpHead(page->status, page->type, page->body.size());
  page_ = std::move(page);
  state_ = State::kWriting;
  deadline_ = now + HttpServer::kWriteLimit;
  Write(now);
}

size_t HttpConnection::Unsent() const {
  return head_.size() + (head_only_ ? 0 : page_->body.size()) - sent_;
}

void HttpConnection::Write(absl::Time now) {
  if (state_ != State::kWriting) return;
  while (Unsent() > 0) {
    std::array<iovec, 2> parts;
    msghdr message = {};
    message.msg_iov = parts.data();
    const auto add = [&](const std::string& text, size_t from) {
      parts[message.msg_iovlen++] = {const_cast<char*>(text.data()) + from,
                                     text.size() - from};
    };
    if (sent_ < head_.size()) add(head_, sent_);
    if (!head_only_) add(page_->body, sent_ - std::min(sent_, head_.size()));
    const ssize_t sent =
        sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      state_ = State::kOver;
      return;
    }
    sent_ += static_cast<size_t>(sent);
  }
  page_ = nullptr;
  shutdown(socket_.get(), SHUT_WR);
  state_ = State::kEnding;
  deadline_ = now + kEndLimit;
}

void HttpConnection::Expire(absl::Time now) {
  if (now < deadline_) return;
  if (state_ != State::kReading) {
    state_ = State::kOver;
    return;
  }
  Refuse(HttpStatus::kRequestTimeout,
         fmt::format("the request was not there after {:g} s",
                     absl::ToDoubleSeconds(HttpServer::kReadLimit)),
         now);
}

void HttpConnection::GiveUp(absl::Time now) {
  if (state_ == State::kReading) {
    Refuse(HttpStatus::kUnavailable,
           "too many connections: this was the oldest that had not asked for "
           "anything",
           now);
  }
  state_ = State::kOver;
}

}  // namespace sluice::daemon
