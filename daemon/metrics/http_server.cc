#include "daemon/metrics/http_server.h"

#include <fmt/format.h>
#include <grp.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {
namespace {

// The interval of checking deadlines, and the shortest one between two
// snapshots.
constexpr absl::Duration kTick = absl::Milliseconds(50);
// After its answer was written, a peer may still send this many bytes for this
// long.
constexpr size_t kMaxThrownAway = 1 << 20;
constexpr absl::Duration kEndLimit = absl::Seconds(1);

// --- sockets ----------------------------------------------------------------
constexpr int kBacklog = 1024;
constexpr int kFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

using HostPort = std::pair<std::string, std::string>;  // host, port

HostPort HostPortOf(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> port = {};
  getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {host.data(), port.data()};
}

HostPort BoundTo(const UniqueFd& socket) {
  sockaddr_storage address = {};
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  getsockname(socket.get(), raw, &size);
  return HostPortOf(raw, size);
}

// Returns -1 for an empty name: chown then leaves the group unchanged.
absl::StatusOr<gid_t> GroupOf(const std::string& name) {
  if (name.empty()) return static_cast<gid_t>(-1);
  std::array<char, 1 << 16> buffer;
  group entry = {};
  group* found = nullptr;
  getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return absl::NotFoundError(
      fmt::format("socket_group in [http] is '{}', and there is no such group: "
                  "make it (groupadd), or name another",
                  name));
}

// `listen` passed CheckHttpSockets; if its port is 0, sets it to the chosen
// one. Uses `left` if that is bound to the same address. AlreadyExists: the
// port is in use, or the address is not this machine's.
absl::StatusOr<UniqueFd> ListenOnTcp(std::string& listen, UniqueFd left) {
  const auto refused = [&](const char* why) {
    return absl::AlreadyExistsError(
        fmt::format("cannot listen on {} ({}): another program does, or the "
                    "address is not this machine's; free it, or choose another "
                    "in [http] listen, or \"\" for none",
                    listen, why));
  };
  const size_t colon = listen.rfind(':');
  const bool bracketed = listen.front() == '[' && listen[colon - 1] == ']';
  const std::string host =
      bracketed ? listen.substr(1, colon - 2) : listen.substr(0, colon);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* all = nullptr;
  const int error = getaddrinfo(host.c_str(), &listen[colon + 1], &hints, &all);
  if (error != 0) return refused(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(all, freeaddrinfo);
  // Listens on the first address only: several addresses would need several
  // sockets.
  const auto& [own, port] = HostPortOf(all->ai_addr, all->ai_addrlen);
  const auto& [bound, bound_port] = BoundTo(left);
  UniqueFd socket = std::move(left);
  if (!socket || bound != own || (port != "0" && bound_port != port)) {
    socket = UniqueFd(::socket(all->ai_family, kFlags, 0));
    // Not SO_REUSEPORT: another process could then listen on the same port.
    const int yes = 1;
    if (!socket ||
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) !=
            0 ||
        bind(socket.get(), all->ai_addr, all->ai_addrlen) != 0 ||
        ::listen(socket.get(), kBacklog) != 0) {
      return refused(strerror(errno));
    }
  }
  listen.replace(colon + 1, listen.npos, BoundTo(socket).second);
  return socket;
}

// Replaces what is at `path`. The socket has mode 0660 and belongs to `group`,
// or mode 0600 if that is empty. PermissionDenied: the daemon may not set the
// group.
absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(fmt::format(
        "the socket path {} is longer than {} bytes: choose a shorter "
        "--runtime-dir",
        path, kLongestSocketPath));
  }
  SLUICE_ASSIGN_OR_RETURN(const gid_t gid, GroupOf(group));
  UniqueFd socket(::socket(AF_UNIX, kFlags, 0));
  unlink(path.c_str());  // left by a killed daemon; the folder is locked
  // The mode is set before `listen`, and no client can connect before that.
  if (!socket ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address),
           sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "listen at " + path);
  }
  absl::Status status;
  if (lchown(path.c_str(), static_cast<uid_t>(-1), gid) != 0) {
    status = absl::PermissionDeniedError(fmt::format(
        "the daemon's user may not give {} to the group '{}' ({}): make it a "
        "member, or change socket_group in [http]",
        path, group, strerror(errno)));
  } else if (chmod(path.c_str(), group.empty() ? 0600 : 0660) != 0 ||
             listen(socket.get(), kBacklog) != 0) {
    status = ErrnoStatus(errno, "listen at " + path);
  }
  if (status.ok()) return socket;
  unlink(path.c_str());
  return status;
}

// --- the server -------------------------------------------------------------
// In the order in which connections are closed to make room for new ones.
// kEnding: the answer is written, and further input is discarded, because
// closing a connection with unread input would reset it before the peer reads
// the answer.
enum class State { kEnding, kReading, kWriting, kWaiting };

struct Connection {
  UniqueFd socket;  // empty: closed
  PageKey key;
  absl::Time deadline;
  State state = State::kReading;
  std::string request = {};
  bool head_only = false;
  std::shared_ptr<const std::string> answer = nullptr;
  size_t done = 0;  // bytes sent; while ending, bytes discarded

  void Go(absl::Time now) {
    if (state == State::kWriting) Write(now);
    while (socket && (state == State::kReading || state == State::kEnding)) {
      if (!Read(now)) break;
    }
    if (now < deadline || state == State::kWaiting) return;
    if (state != State::kReading) return socket.Reset();
    Refuse(kHttpTimeout,
           fmt::format("the request was not there after {:g} s",
                       absl::ToDoubleSeconds(HttpServer::kReadLimit)),
           now);
  }

  bool Read(absl::Time now) {
    std::array<char, 4096> buffer;
    const ssize_t got =
        recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return false;
    done += state == State::kEnding && got > 0 ? static_cast<size_t>(got) : 0;
    if (got <= 0 || done > kMaxThrownAway) socket.Reset();
    if (!socket || state == State::kEnding) return true;
    request.append(buffer.data(), static_cast<size_t>(got));
    if (const auto asked = ReadHttpRequest(request)) Take(*asked, now);
    return true;
  }

  void Take(const HttpRequest& asked, absl::Time now) {
    if (asked.status != kHttpOk) return Refuse(asked.status, asked.why, now);
    const auto page = FindPage(asked.path);
    if (!page) {
      return Refuse(kHttpNotFound, "there are only " + PagePaths(), now);
    }
    key.first = *page;
    head_only = asked.head;
    state = State::kWaiting;
  }

  void Refuse(HttpStatus status, const std::string& why, absl::Time now) {
    Answer(std::make_shared<const std::string>(
               LinePage(status, fmt::format("{}: {}", status, why))),
           now);
  }

  void Answer(std::shared_ptr<const std::string> with, absl::Time now) {
    answer = std::move(with);
    state = State::kWriting;
    deadline = now + HttpServer::kWriteLimit;
    Write(now);
  }

  void Write(absl::Time now) {
    const size_t end =
        head_only ? answer->find("\r\n\r\n") + 4 : answer->size();
    while (done < end) {
      const ssize_t wrote = send(socket.get(), answer->data() + done,
                                 end - done, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (wrote < 0 && errno != EAGAIN) socket.Reset();
      if (wrote < 0) return;
      done += static_cast<size_t>(wrote);
    }
    answer = nullptr;
    shutdown(socket.get(), SHUT_WR);
    state = State::kEnding;
    deadline = now + kEndLimit;
    done = 0;
  }
};

struct Listener {
  UniqueFd socket;
  Audience audience = Audience::kAnybody;
  size_t most = 0;                         // of connections
  std::list<Connection> connections = {};  // oldest first

  void Go(absl::Time now) {
    for (Connection& c : connections) c.Go(now);
    std::erase_if(connections, [](const auto& c) { return !c.socket; });
  }

  // Closes a connection for a new one. Returns false if all connections wait
  // for a page, which they get soon.
  bool MakeRoom(absl::Time now) {
    Go(now);  // a request may have arrived since the last check
    if (connections.size() < most) return true;
    const auto goes =
        std::ranges::min_element(connections, {}, &Connection::state);
    if (goes->state == State::kReading) {
      goes->Refuse(kHttpUnavailable,
                   "too many connections: this was the oldest that had not "
                   "asked for anything",
                   now);
    }
    if (goes->state == State::kWaiting) return false;
    connections.erase(goes);
    return true;
  }
};

class Server final : public HttpServer {
 public:
  ~Server() override {
    if (thread_.joinable()) {
      eventfd_write(stop_.get(), 1);
      thread_.join();
    }
    if (!path_.empty()) unlink(path_.c_str());
  }

  absl::Status Start(HttpOptions options) {
    SLUICE_RETURN_IF_ERROR(
        CheckHttpSockets(options.listen, options.socket_group));
    stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    if (!stop_ || !epoll_) return ErrnoStatus(errno, "make an epoll");
    Watch(stop_);
    tcp_ = options.listen;
    if (!tcp_.empty()) Listen(std::move(options.left));
    if (!options.socket.empty()) {
      SLUICE_ASSIGN_OR_RETURN(
          UniqueFd socket, ListenOnUnix(options.socket, options.socket_group));
      path_ = options.socket;
      Watch(socket);
      listeners_.push_back({std::move(socket), Audience::kOperators, kMaxUnix});
    }
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "http");
    return absl::OkStatus();
  }

  void Serve(PageSources sources) override {
    const MutexLock lock(mutex_);
    sources_ = std::make_shared<const PageSources>(std::move(sources));
  }
  TcpListener listener() const override {
    const MutexLock lock(mutex_);
    return over_tcp_;
  }
  bool goes_on() const override {
    const MutexLock lock(mutex_);
    return goes_on_;
  }
  void WhenListening(std::function<void(int fd)> listening) override {
    const MutexLock lock(mutex_);
    listening_ = std::move(listening);
    if (tcp_fd_ >= 0) listening_(tcp_fd_);
  }

 private:
  // Watches `fd`. An event wakes the thread once, which then checks everything.
  void Watch(const UniqueFd& fd) {
    epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.fd = fd.get()}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event);
  }

  void Listen(UniqueFd left) {
    const int left_fd = left.get();
    auto socket = ListenOnTcp(tcp_, std::move(left));
    listen_again_at_ =
        socket.ok() ? absl::InfiniteFuture() : clock_.Now() + kListenAgain;
    const MutexLock lock(mutex_);
    over_tcp_ = {tcp_, std::string(socket.status().message())};
    if (!socket.ok()) return;
    tcp_fd_ = socket->get();
    goes_on_ = tcp_fd_ == left_fd;
    Watch(*socket);
    listeners_.push_back({*std::move(socket), Audience::kAnybody, kMaxTcp});
    if (listening_) listening_(tcp_fd_);
  }

  void Run() {
    while (true) {
      const bool ticks =
          starved_ || std::ranges::any_of(listeners_, [](const auto& each) {
            return !each.connections.empty();
          });
      const absl::Duration wait =
          std::min(ticks ? kTick : absl::Hours(1),
                   std::max(listen_again_at_ - clock_.Now(), kTick));
      std::array<epoll_event, 64> woken;
      epoll_wait(epoll_.get(), woken.data(), woken.size(),
                 static_cast<int>(absl::ToInt64Milliseconds(wait)));
      eventfd_t stopped;
      if (eventfd_read(stop_.get(), &stopped) == 0) return;
      const absl::Time now = clock_.Now();
      starved_ = false;
      for (Listener& each : listeners_) {
        each.Go(now);
        Accept(each, now);
      }
      AnswerWaiting(now);
      if (listen_again_at_ <= now) Listen({});
    }
  }

  void Accept(Listener& at, absl::Time now) {
    for (size_t i = 0; i < at.most; ++i) {
      pollfd waits = {at.socket.get(), POLLIN, 0};
      // Returns if no new connection waits, so that none is closed to make
      // room.
      if (poll(&waits, 1, 0) != 1) return;
      if (at.connections.size() >= at.most && !at.MakeRoom(now)) return;
      UniqueFd socket(accept4(at.socket.get(), nullptr, nullptr,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
      starved_ = !socket;
      if (starved_) return;
      Watch(socket);
      at.connections.push_back({std::move(socket),
                                {PageName::kStatusPage, at.audience},
                                now + kReadLimit});
      // Reads a request that has arrived already, so that this connection is
      // not closed to make room for another.
      at.connections.back().Go(now);
    }
  }

  // Answers all waiting requests from one snapshot, taken after the last of
  // them. So a flood of requests costs the daemon's loop at most one snapshot
  // per kTick.
  void AnswerWaiting(absl::Time now) {
    if (now < next_pages_) return;
    const auto for_waiting = [this](const auto& act) {
      for (Listener& listener : listeners_) {
        for (Connection& c : listener.connections) {
          if (c.state == State::kWaiting) act(c);
        }
      }
    };
    std::set<PageKey> asked;
    for_waiting([&](const Connection& c) { asked.insert(c.key); });
    if (asked.empty()) return;
    std::shared_ptr<const PageSources> from;
    {
      const MutexLock lock(mutex_);
      from = sources_;
    }
    const Pages pages = MakePages(asked, from.get());
    const absl::Time made = clock_.Now();
    next_pages_ = made + kTick;
    for_waiting([&](Connection& c) { c.Answer(pages.at(c.key), made); });
  }

  MonotonicClock clock_;
  UniqueFd stop_, epoll_;
  std::string path_;  // path of the unix socket, which is removed at the end
  std::string tcp_;   // the address to listen at
  std::list<Listener> listeners_;
  bool starved_ = false;  // accept found no free descriptor
  absl::Time next_pages_ = absl::InfinitePast();
  absl::Time listen_again_at_ = absl::InfiniteFuture();
  mutable Mutex mutex_;
  std::shared_ptr<const PageSources> sources_ ABSL_GUARDED_BY(mutex_);
  TcpListener over_tcp_ ABSL_GUARDED_BY(mutex_);
  int tcp_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  bool goes_on_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(int)> listening_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(
    HttpOptions options) {
  auto server = std::make_unique<Server>();
  SLUICE_RETURN_IF_ERROR(server->Start(std::move(options)));
  return server;
}

absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group) {
  const size_t colon = listen.rfind(':');
  uint32_t port = 0;
  if (!listen.empty() &&
      (colon == listen.npos || colon == 0 ||
       !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port > 65535)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no address to listen on: write ADDRESS:PORT, such as "
        "127.0.0.1:9435, or \"\" for none",
        listen));
  }
  return GroupOf(group).status();
}

}  // namespace sluice::daemon
