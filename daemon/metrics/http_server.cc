#include "daemon/metrics/http_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/metrics/http_socket.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// How often deadlines are looked at, and between two snapshots.
constexpr absl::Duration kTick = absl::Milliseconds(50);
// What a peer may still send after its answer is there, and for how long.
constexpr size_t kMaxThrownAway = 1 << 20;
constexpr absl::Duration kEndLimit = absl::Seconds(1);

// In the order in which they make room for others.
enum class State {
  // The answer is written; what still comes is thrown away, because a close
  // with unread bytes would take the answer from the peer.
  kEnding,
  kReading,  // the request
  kWriting,  // the answer
  kWaiting,  // for its page
  kOver,
};

struct Connection {
  UniqueFd socket;
  PageKey key;
  absl::Time deadline;
  State state = State::kReading;
  std::string request;
  bool head_only = false;
  std::string head;
  std::shared_ptr<const Page> page;
  size_t sent = 0, thrown_away = 0;

  void Answer(std::shared_ptr<const Page> answer, absl::Time now);
  void Refuse(HttpStatus status, std::string_view why, absl::Time now);
  void Read(absl::Time now);
  void Write(absl::Time now);
};

struct Listener {
  UniqueFd socket;
  Audience audience = Audience::kAnybody;
  size_t most = 0;                    // connections
  std::list<Connection> connections;  // oldest first
  // Accept failed for want of descriptors; it would wake the thread for ever.
  absl::Time rests_until = absl::InfinitePast();
};

void Connection::Answer(std::shared_ptr<const Page> answer, absl::Time now) {
  page = std::move(answer);
  head = HttpHead(page->status, page->type, page->body.size());
  state = State::kWriting;
  deadline = now + HttpServer::kWriteLimit;
  Write(now);
}

void Connection::Refuse(HttpStatus status, std::string_view why,
                        absl::Time now) {
  Answer(std::make_shared<const Page>(
             LinePage(status, fmt::format("{} {}: {}", static_cast<int>(status),
                                          Name(status), why))),
         now);
}

// One read at a time, so that no sender keeps the thread from the others.
void Connection::Read(absl::Time now) {
  std::array<char, 4096> buffer;
  const ssize_t got =
      recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) state = State::kOver;
  if (state == State::kEnding) {
    thrown_away += static_cast<size_t>(got);
    if (thrown_away > kMaxThrownAway) state = State::kOver;
  }
  if (state != State::kReading) return;
  request.append(buffer.data(), static_cast<size_t>(got));
  const auto read = ReadHttpRequest(request);
  if (const auto* refused = std::get_if<HttpRefusal>(&read)) {
    return Refuse(refused->status, refused->why, now);
  }
  const auto* asked = std::get_if<HttpRequest>(&read);
  if (asked == nullptr) return;
  head_only = asked->head;
  const auto name = FindPage(asked->path);
  if (!name) {
    return Refuse(HttpStatus::kNotFound, "there are only " + PagePaths(), now);
  }
  key.first = *name;
  state = State::kWaiting;
}

void Connection::Write(absl::Time now) {
  const std::string_view body = head_only ? "" : std::string_view(page->body);
  while (sent < head.size() + body.size()) {
    const std::string_view rest = sent < head.size()
                                      ? std::string_view(head).substr(sent)
                                      : body.substr(sent - head.size());
    const ssize_t wrote = send(socket.get(), rest.data(), rest.size(),
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) state = State::kOver;
    if (wrote < 0) return;
    sent += static_cast<size_t>(wrote);
  }
  page = nullptr;
  shutdown(socket.get(), SHUT_WR);
  state = State::kEnding;
  deadline = now + kEndLimit;
}

}  // namespace

absl::Status CheckHttp(const HttpOptions& options) {
  if (!options.listen.empty()) {
    SLUICE_RETURN_IF_ERROR(ParseHttpAddress(options.listen).status());
  }
  return CheckGroup(options.socket_group);
}

struct HttpServer::Server {
  ~Server();
  void Listen(UniqueFd left = {});
  void Run();
  std::vector<pollfd> Polls() const;
  absl::Duration Timeout() const;
  void Accept(Listener& listener);
  bool MakeRoom(Listener& listener);
  void AnswerWaiting();
  void Expire(Listener& listener);

  MonotonicClock clock;
  UniqueFd stop;     // an eventfd
  std::string path;  // of the unix socket, to be removed
  std::list<Listener> listeners;
  absl::Time next_pages = absl::InfinitePast();
  HttpAddress tcp;
  std::optional<absl::Time> listen_again_at;  // the port of `tcp` is taken
  Mutex mutex;
  std::shared_ptr<const PageSources> sources ABSL_GUARDED_BY(mutex);
  TcpListener over_tcp ABSL_GUARDED_BY(mutex);
  int tcp_fd ABSL_GUARDED_BY(mutex) = -1;
  bool goes_on ABSL_GUARDED_BY(mutex) = false;
  std::function<void(int)> listening ABSL_GUARDED_BY(mutex);
  std::thread thread;
};

HttpServer::Server::~Server() {
  if (thread.joinable()) {
    eventfd_write(stop.get(), 1);
    thread.join();
  }
  if (!path.empty()) unlink(path.c_str());
}

void HttpServer::Server::Listen(UniqueFd left) {
  const int left_fd = left.get();
  auto socket = ListenOnTcp(tcp, std::move(left));
  listen_again_at.reset();
  const MutexLock lock(mutex);
  over_tcp = {tcp.text(), std::string(socket.status().message())};
  if (!socket.ok()) {
    listen_again_at = clock.Now() + kListenAgain;
    return;
  }
  tcp_fd = socket->get();
  goes_on = tcp_fd == left_fd;
  listeners.push_back({*std::move(socket), Audience::kAnybody, kMaxTcp, {}});
  if (listening) listening(tcp_fd);
}

// The eventfd, then of each listener itself and its connections.
std::vector<pollfd> HttpServer::Server::Polls() const {
  std::vector<pollfd> polls = {{stop.get(), POLLIN, 0}};
  for (const Listener& listener : listeners) {
    const bool room =
        listener.connections.size() < listener.most ||
        std::any_of(
            listener.connections.begin(), listener.connections.end(),
            [](const Connection& c) { return c.state != State::kWaiting; });
    const bool accepts = room && listener.rests_until <= clock.Now();
    polls.push_back({accepts ? listener.socket.get() : -1, POLLIN, 0});
    for (const Connection& c : listener.connections) {
      // The peer of one that waits may have ended, which would spin.
      polls.push_back(
          {c.state == State::kWaiting ? -1 : c.socket.get(),
           static_cast<short>(c.state == State::kWriting ? POLLOUT : POLLIN),
           0});
    }
  }
  return polls;
}

absl::Duration HttpServer::Server::Timeout() const {
  for (const Listener& listener : listeners) {
    if (!listener.connections.empty() || clock.Now() < listener.rests_until) {
      return kTick;
    }
  }
  return listen_again_at ? kListenAgain : absl::Hours(1);
}

void HttpServer::Server::Run() {
  while (true) {
    std::vector<pollfd> polls = Polls();
    const int woken =
        poll(polls.data(), polls.size(),
             static_cast<int>(absl::ToInt64Milliseconds(Timeout())));
    // It refuses more descriptors than may be open, which can be lowered.
    if (woken < 0) absl::SleepFor(kTick);
    auto ready = polls.begin();
    if (ready++->revents != 0) return;
    for (Listener& listener : listeners) {
      const bool somebody_waits = ready++->revents != 0;
      for (Connection& c : listener.connections) {
        const short events = ready++->revents;
        if (events & POLLOUT) c.Write(clock.Now());
        if (events & POLLIN) c.Read(clock.Now());
        // Both ways are shut: an answer would not be read.
        if (events & (POLLHUP | POLLERR)) c.state = State::kOver;
      }
      if (somebody_waits) Accept(listener);
    }
    AnswerWaiting();
    for (Listener& listener : listeners) Expire(listener);
    if (listen_again_at && *listen_again_at <= clock.Now()) Listen();
  }
}

void HttpServer::Server::Accept(Listener& listener) {
  for (size_t i = 0; i < listener.most; ++i) {
    pollfd waits = {listener.socket.get(), POLLIN, 0};
    if (poll(&waits, 1, 0) != 1) return;  // none goes for none
    if (listener.connections.size() >= listener.most && !MakeRoom(listener)) {
      return;
    }
    UniqueFd socket(accept4(listener.socket.get(), nullptr, nullptr,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      listener.rests_until = clock.Now() + kTick;
      return;
    }
    Connection& accepted = listener.connections.emplace_back();
    accepted.socket = std::move(socket);
    accepted.key = {PageName::kStatusPage, listener.audience};
    accepted.deadline = clock.Now() + kReadLimit;
    // A request that is there already cannot be crowded out any more.
    accepted.Read(clock.Now());
  }
}

// False: all wait for a page, which they get soon.
bool HttpServer::Server::MakeRoom(Listener& listener) {
  auto& all = listener.connections;
  // Its request may have come since it was looked at last.
  for (Connection& c : all) {
    if (c.state == State::kReading) c.Read(clock.Now());
  }
  std::erase_if(all, [](const auto& c) { return c.state == State::kOver; });
  if (all.size() < listener.most) return true;
  const auto goes = std::min_element(
      all.begin(), all.end(),
      [](const auto& a, const auto& b) { return a.state < b.state; });
  if (goes->state == State::kWaiting) return false;
  if (goes->state == State::kReading) {
    goes->Refuse(HttpStatus::kUnavailable,
                 "too many connections: this was the oldest that had not asked "
                 "for anything",
                 clock.Now());
  }
  all.erase(goes);
  return true;
}

// Answers from one snapshot, taken after all of them asked; a flood of requests
// costs the daemon's loop at most one snapshot per kTick.
void HttpServer::Server::AnswerWaiting() {
  if (clock.Now() < next_pages) return;
  std::set<PageKey> asked;
  for (const Listener& listener : listeners) {
    for (const Connection& c : listener.connections) {
      if (c.state == State::kWaiting) asked.insert(c.key);
    }
  }
  if (asked.empty()) return;
  std::shared_ptr<const PageSources> from;
  {
    const MutexLock lock(mutex);
    from = sources;
  }
  const Pages pages = MakePages(asked, from.get());
  const absl::Time now = clock.Now();
  next_pages = now + kTick;
  for (Listener& listener : listeners) {
    for (Connection& c : listener.connections) {
      if (c.state == State::kWaiting) c.Answer(pages.at(c.key), now);
    }
  }
}

void HttpServer::Server::Expire(Listener& listener) {
  const absl::Time now = clock.Now();
  for (Connection& c : listener.connections) {
    if (now < c.deadline || c.state == State::kWaiting) continue;
    if (c.state != State::kReading) {
      c.state = State::kOver;
      continue;
    }
    c.Refuse(HttpStatus::kRequestTimeout,
             fmt::format("the request was not there after {:g} s",
                         absl::ToDoubleSeconds(kReadLimit)),
             now);
  }
  std::erase_if(listener.connections,
                [](const auto& c) { return c.state == State::kOver; });
}

HttpServer::HttpServer() : server_(std::make_unique<Server>()) {}

HttpServer::~HttpServer() = default;

void HttpServer::Serve(PageSources sources) {
  const MutexLock lock(server_->mutex);
  server_->sources = std::make_shared<const PageSources>(std::move(sources));
}

TcpListener HttpServer::listener() const {
  const MutexLock lock(server_->mutex);
  return server_->over_tcp;
}

bool HttpServer::goes_on() const {
  const MutexLock lock(server_->mutex);
  return server_->goes_on;
}

void HttpServer::WhenListening(std::function<void(int fd)> listening) {
  const MutexLock lock(server_->mutex);
  server_->listening = std::move(listening);
  if (server_->tcp_fd >= 0) server_->listening(server_->tcp_fd);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    HttpOptions options) {
  auto http = std::unique_ptr<HttpServer>(new HttpServer());
  Server* server = http->server_.get();
  server->stop = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!server->stop) return ErrnoStatus(errno, "make an eventfd");
  if (!options.listen.empty()) {
    SLUICE_ASSIGN_OR_RETURN(server->tcp, ParseHttpAddress(options.listen));
    server->Listen(std::move(options.left));
  }
  if (!options.socket.empty()) {
    SLUICE_ASSIGN_OR_RETURN(UniqueFd socket,
                            ListenOnUnix(options.socket, options.socket_group));
    server->path = options.socket;
    server->listeners.push_back(
        {std::move(socket), Audience::kOperators, kMaxUnix, {}});
  }
  server->thread = std::thread([server] { server->Run(); });
  pthread_setname_np(server->thread.native_handle(), "http");
  return http;
}

}  // namespace sluice::daemon
