#include "daemon/metrics/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/metrics/http_connection.h"
#include "daemon/metrics/http_socket.h"
#include "daemon/metrics/page_maker.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/spare_fd.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

using State = HttpConnection::State;

// How often deadlines are looked at, while there are connections.
constexpr absl::Duration kTick = absl::Milliseconds(50);
// Answers that are being written: each may hold a page of its own.
constexpr int kMaxWriting = 16;
// Numbers of connections begin behind those of everything else.
constexpr uint64_t kWakeNumber = 0;
constexpr uint64_t kFirstConnection = 16;

struct Listener {
  UniqueFd socket;
  Audience audience = Audience::kAnybody;
  size_t most = 0;  // connections
  uint64_t number = 0;
  bool paused = false;
  // The socket is left alone until then: no connection can be accepted, nor
  // turned away.
  std::optional<absl::Time> look_again_at;
  std::map<uint64_t, HttpConnection> connections;  // oldest first
};

// To be accepted. Nobody is crowded out where nobody comes.
bool SomebodyWaits(int listener) {
  pollfd waits = {.fd = listener, .events = POLLIN, .revents = 0};
  return poll(&waits, 1, 0) == 1;
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
  absl::Status Prepare();
  void Add(UniqueFd socket, Audience audience, size_t most);
  void Listen(UniqueFd left = {});
  void Run();
  void Stop();
  void Wake();

  void Accept(Listener& listener);
  void Look(Listener& listener, uint32_t events);
  void TurnAway(Listener& listener);
  bool MakeRoom(Listener& listener);
  void Serve(Listener& listener, uint64_t number, uint32_t events);
  void Settle(Listener& listener, uint64_t number);
  void TakePages();
  void Expire();
  bool idle() const;

  struct Made {
    uint64_t round = 0;
    Pages pages;
  };

  MonotonicClock clock;
  UniqueFd epoll, wake;
  SpareFd spare;
  std::string path;  // of the unix socket, to be removed
  std::list<Listener> listeners;
  uint64_t next_number = kFirstConnection;
  absl::Time next_tick = absl::InfinitePast();
  HttpAddress tcp;
  std::optional<absl::Time> listen_again_at;  // the port of `tcp` is taken
  Mutex mutex;
  std::vector<Made> made ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  TcpListener over_tcp ABSL_GUARDED_BY(mutex);
  int tcp_fd ABSL_GUARDED_BY(mutex) = -1;
  bool goes_on ABSL_GUARDED_BY(mutex) = false;
  std::function<void(int)> listening ABSL_GUARDED_BY(mutex);
  std::unique_ptr<PageMaker> maker;
  std::thread thread;
};

HttpServer::Server::~Server() {
  Stop();
  maker.reset();
  if (!path.empty()) unlink(path.c_str());
}

absl::Status HttpServer::Server::Prepare() {
  epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !wake) return ErrnoStatus(errno, "prepare HTTP");
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeNumber}};
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event);
  return absl::OkStatus();
}

void HttpServer::Server::Add(UniqueFd socket, Audience audience, size_t most) {
  Listener& listener = listeners.emplace_back();
  listener.socket = std::move(socket);
  listener.audience = audience;
  listener.most = most;
  listener.number = listeners.size();
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = listener.number}};
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.socket.get(), &event);
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
  Add(*std::move(socket), Audience::kAnybody, kMaxTcp);
  if (listening) listening(tcp_fd);
}

void HttpServer::Server::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake.get(), &one, sizeof(one));
}

void HttpServer::Server::Stop() {
  {
    const MutexLock lock(mutex);
    stopping = true;
  }
  Wake();
  if (thread.joinable()) thread.join();
}

bool HttpServer::Server::idle() const {
  return std::all_of(listeners.begin(), listeners.end(), [](const Listener& l) {
    return l.connections.empty() && !l.look_again_at;
  });
}

void HttpServer::Server::Run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const absl::Duration timeout = !idle()           ? kTick
                                   : listen_again_at ? kListenAgain
                                                     : absl::InfiniteDuration();
    const int timeout_ms =
        timeout == absl::InfiniteDuration()
            ? -1
            : static_cast<int>(absl::ToInt64Milliseconds(timeout));
    const int count =
        epoll_wait(epoll.get(), events.data(), events.size(), timeout_ms);
    {
      const MutexLock lock(mutex);
      if (stopping) return;
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[i].data.u64;
      if (number == kWakeNumber) TakePages();
      for (Listener& listener : listeners) {
        if (listener.number == number) Accept(listener);
        if (number >= kFirstConnection) {
          Serve(listener, number, events[i].events);
        }
      }
    }
    Expire();
  }
}

// Until nobody waits, or there is no room.
void HttpServer::Server::Accept(Listener& listener) {
  for (size_t i = 0; i < listener.most; ++i) {
    if (!SomebodyWaits(listener.socket.get())) return;
    if (listener.connections.size() >= listener.most && !MakeRoom(listener)) {
      // All wait for a page: Settle goes on when one has it.
      Look(listener, /*events=*/0);
      listener.paused = true;
      return;
    }
    UniqueFd socket(accept4(listener.socket.get(), nullptr, nullptr,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && SpareFd::IsShortage(errno)) return TurnAway(listener);
    if (!socket) return;
    const uint64_t number = next_number++;
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = number}};
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
      return;
    }
    listener.connections.try_emplace(number, std::move(socket),
                                     listener.audience, clock.Now());
    // A request that is there already cannot be crowded out any more.
    Serve(listener, number, EPOLLIN);
  }
}

void HttpServer::Server::Look(Listener& listener, uint32_t events) {
  epoll_event event = {.events = events, .data = {.u64 = listener.number}};
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, listener.socket.get(), &event);
}

// There is no descriptor for it. It would wake the thread for ever.
void HttpServer::Server::TurnAway(Listener& listener) {
  const bool taken = static_cast<bool>(spare.Take(listener.socket.get()));
  if (taken) return spare.Refill();
  Look(listener, /*events=*/0);
  listener.look_again_at = clock.Now() + kTick;
}

// False: all wait for a page, which they get soon.
bool HttpServer::Server::MakeRoom(Listener& listener) {
  for (const State state : {State::kEnding, State::kReading, State::kWriting}) {
    for (auto at = listener.connections.begin();
         at != listener.connections.end();) {
      const uint64_t number = at->first;
      HttpConnection& connection = at->second;
      ++at;  // what is at `number` may go
      if (connection.state() != state) continue;
      // Its request may have come since it was looked at last.
      if (state == State::kReading) {
        Serve(listener, number, EPOLLIN);
        if (listener.connections.size() < listener.most) return true;
        if (connection.state() != state) continue;
      }
      connection.GiveUp(clock.Now());
      listener.connections.erase(number);
      return true;
    }
  }
  return false;
}

void HttpServer::Server::Serve(Listener& listener, uint64_t number,
                               uint32_t events) {
  const auto found = listener.connections.find(number);
  if (found == listener.connections.end()) return;
  HttpConnection& connection = found->second;
  if (events & EPOLLOUT) connection.Write(clock.Now());
  if (events & EPOLLIN) connection.Read(clock.Now());
  // Both ways are shut: nobody reads an answer.
  if (events & (EPOLLHUP | EPOLLERR)) connection.PeerGone();
  Settle(listener, number);
}

// After something happened to a connection: what it waits for now.
void HttpServer::Server::Settle(Listener& listener, uint64_t number) {
  HttpConnection& connection = listener.connections.at(number);
  if (connection.state() == State::kWaiting && connection.round == 0) {
    connection.round = maker->Ask(connection.key());
  }
  // There is room for another, or one that can make room.
  if (connection.state() != State::kWaiting &&
      std::exchange(listener.paused, false)) {
    Look(listener, EPOLLIN);
  }
  if (connection.state() == State::kOver) {
    listener.connections.erase(number);
    return;
  }
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = number}};
  // Its peer may have ended: level-triggered, that would spin.
  if (connection.state() == State::kWaiting) event.events = 0;
  if (connection.state() == State::kWriting) event.events = EPOLLOUT;
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, connection.fd(), &event);
}

void HttpServer::Server::TakePages() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake.get(), &count, sizeof(count));
  std::vector<Made> taken;
  {
    const MutexLock lock(mutex);
    taken.swap(made);
  }
  for (const Made& each : taken) {
    for (Listener& listener : listeners) {
      std::vector<uint64_t> answered;
      for (auto& [number, connection] : listener.connections) {
        if (connection.state() != State::kWaiting ||
            connection.round != each.round) {
          continue;
        }
        connection.Answer(each.pages.at(connection.key()), clock.Now());
        answered.push_back(number);
      }
      for (const uint64_t number : answered) Settle(listener, number);
    }
  }
}

void HttpServer::Server::Expire() {
  const absl::Time now = clock.Now();
  if (listen_again_at && *listen_again_at <= now) Listen();
  if (now < next_tick) return;
  next_tick = now + kTick;
  for (Listener& listener : listeners) {
    if (listener.look_again_at && *listener.look_again_at <= now) {
      listener.look_again_at.reset();
      spare.Refill();
      if (!listener.paused) Look(listener, EPOLLIN);
    }
    std::vector<uint64_t> changed;
    int writing = 0;
    // Newest first, so that of too many writers the oldest go.
    for (auto at = listener.connections.rbegin();
         at != listener.connections.rend(); ++at) {
      HttpConnection& connection = at->second;
      const State before = connection.state();
      if (before == State::kWriting && ++writing > kMaxWriting) {
        connection.GiveUp(now);
      }
      connection.Expire(now);
      if (connection.state() != before) changed.push_back(at->first);
    }
    for (const uint64_t number : changed) Settle(listener, number);
  }
}

absl::Status HttpServer::Available() { return absl::OkStatus(); }

HttpServer::HttpServer() : server_(std::make_unique<Server>()) {}

HttpServer::~HttpServer() = default;

void HttpServer::Serve(PageSources sources) {
  server_->maker->Serve(std::move(sources));
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
  SLUICE_RETURN_IF_ERROR(server->Prepare());
  if (!options.listen.empty()) {
    SLUICE_ASSIGN_OR_RETURN(server->tcp, ParseHttpAddress(options.listen));
    server->Listen(std::move(options.left));
  }
  if (!options.socket.empty()) {
    SLUICE_ASSIGN_OR_RETURN(UniqueFd socket,
                            ListenOnUnix(options.socket, options.socket_group));
    server->path = options.socket;
    server->Add(std::move(socket), Audience::kOperators, kMaxUnix);
  }
  server->maker =
      std::make_unique<PageMaker>([server](uint64_t round, Pages pages) {
        {
          const MutexLock lock(server->mutex);
          server->made.push_back({round, std::move(pages)});
        }
        server->Wake();
      });
  server->thread = std::thread([server] { server->Run(); });
  pthread_setname_np(server->thread.native_handle(), "http");
  return http;
}

}  // namespace sluice::daemon
