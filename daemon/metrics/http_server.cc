#include "daemon/metrics/http_server.h"

#include <fmt/format.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {
namespace {

// The limit of a whole request, from the connection's begin: a client that
// sends a byte per second gains nothing.
constexpr absl::Duration kReadLimit = absl::Seconds(2);
// The limit of a whole answer.
constexpr absl::Duration kWriteLimit = absl::Seconds(5);
// After its answer, a peer may still send this many bytes for this long.
constexpr size_t kMaxThrownAway = 1 << 20;
constexpr absl::Duration kEndLimit = absl::Seconds(1);
// The interval of checking deadlines, and the shortest one between snapshots.
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr int kBacklog = 1024;
constexpr int kFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// Returns -1 for an empty name: chown then leaves the group unchanged.
absl::StatusOr<gid_t> GroupOf(const std::string& name) {
  if (name.empty()) return static_cast<gid_t>(-1);
  std::array<char, 1 << 16> buffer;
  group entry = {};
  group* found = nullptr;
  getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return absl::NotFoundError(
      fmt::format("[http] socket_group '{}' does not exist: create that group "
                  "(groupadd), or name another",
                  name));
}

// Returns the socket's address; an IPv4 one has its port in the same place.
sockaddr_in6 BoundTo(const UniqueFd& socket) {
  sockaddr_in6 address = {};
  socklen_t size = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

// Listens at `listen` (which passed CheckHttpSockets), and replaces a port of 0
// by the chosen one. Uses `left` if that is bound to the same address.
// AlreadyExists: the port is in use, or the address is not this machine's.
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
  const std::string host = listen.substr(bracketed, colon - 2 * bracketed);
  const addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                          .ai_socktype = SOCK_STREAM};
  addrinfo* all = nullptr;
  const int error = getaddrinfo(host.c_str(), &listen[colon + 1], &hints, &all);
  if (error != 0) return refused(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(all, freeaddrinfo);
  const sockaddr_in6 bound = BoundTo(left);
  sockaddr_in6 wanted = {};
  // Only the first address is used: several would need several sockets.
  std::memcpy(&wanted, all->ai_addr, all->ai_addrlen);
  if (wanted.sin6_port == 0) wanted.sin6_port = bound.sin6_port;
  UniqueFd socket = std::move(left);
  if (!socket || std::memcmp(&bound, &wanted, sizeof(bound)) != 0) {
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
  listen.replace(colon + 1, listen.npos,
                 std::to_string(ntohs(BoundTo(socket).sin6_port)));
  return socket;
}

// Listens at `path` and replaces what is there. The socket has mode 0660 and
// belongs to `group`, or has mode 0600 if that is empty.
absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group) {
  SLUICE_ASSIGN_OR_RETURN(const gid_t gid, GroupOf(group));
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(fmt::format(
        "the socket path {} is longer than {} bytes: choose a shorter "
        "--runtime-dir",
        path, kLongestSocketPath));
  }
  UniqueFd socket(::socket(AF_UNIX, kFlags, 0));
  unlink(path.c_str());  // left by a killed daemon; the folder is locked
  const auto* const raw = reinterpret_cast<const sockaddr*>(&*address);
  const bool bound = socket && bind(socket.get(), raw, sizeof(*address)) == 0;
  // Group and mode are set before `listen`: until then no client can connect.
  if (bound && lchown(path.c_str(), static_cast<uid_t>(-1), gid) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "the daemon's user may not give {} to the group '{}' ({}): make the "
        "user a member, or change socket_group in [http]",
        path, group, strerror(errno)));
  }
  if (!bound || chmod(path.c_str(), group.empty() ? 0600 : 0660) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, "listen at " + path);
  }
  return socket;
}

// Connections are closed in this order to make room for new ones. kEnding: the
// answer is sent, and input is discarded: closing a socket with unread input
// would reset the connection before the peer has read the answer.
enum class State { kEnding, kReading, kWriting, kWaiting };

struct Connection {
  UniqueFd socket;  // empty: closed
  absl::Time deadline;
  State state = State::kReading;
  std::string bytes = {};  // of the request
  HttpRequest request = {};
  std::shared_ptr<const std::string> answer = nullptr;
  size_t done = 0;  // bytes sent; while ending, bytes discarded

  // Reads or writes as much as the socket allows without waiting.
  void Go(absl::Time now) {
    std::array<char, 4096> input;
    while (state != State::kWaiting) {
      const bool writes = state == State::kWriting;
      const ssize_t moved =
          writes ? send(socket.get(), answer->data() + done, Size() - done,
                        MSG_NOSIGNAL)
                 : recv(socket.get(), input.data(), input.size(), 0);
      if (moved < 0 && errno == EAGAIN) break;
      if (moved <= 0) return socket.Reset();
      if (state == State::kReading) {
        bytes.append(input.data(), static_cast<size_t>(moved));
        auto read = ReadHttpRequest(bytes);
        if (!read) continue;
        request = *std::move(read);
        state = State::kWaiting;
        if (request.status != kHttpOk) Refuse(request.status, request.why, now);
        continue;
      }
      done += static_cast<size_t>(moved);
      if (!writes && done > kMaxThrownAway) return socket.Reset();
      if (!writes || done < Size()) continue;
      shutdown(socket.get(), SHUT_WR);
      state = State::kEnding;
      deadline = now + kEndLimit;
      done = 0;
    }
    if (now < deadline || state == State::kWaiting) return;
    if (state != State::kReading) return socket.Reset();
    Refuse(kHttpTimeout,
           fmt::format("the request was not complete after {:g} s",
                       absl::ToDoubleSeconds(kReadLimit)),
           now);
  }

  size_t Size() const {
    return request.head ? answer->find("\r\n\r\n") + 4 : answer->size();
  }

  void Refuse(HttpStatus status, const std::string& why, absl::Time now) {
    Answer(std::make_shared<const std::string>(
               HttpAnswer({status, fmt::format("{}: {}\n", status, why)})),
           now);
  }

  void Answer(std::shared_ptr<const std::string> with, absl::Time now) {
    answer = std::move(with);
    state = State::kWriting;
    deadline = now + kWriteLimit;
  }
};

struct Listener {
  UniqueFd socket;
  Audience audience;
  size_t most;                               // of connections
  std::vector<Connection> connections = {};  // oldest first

  void Go(absl::Time now) {
    for (Connection& each : connections) each.Go(now);
    std::erase_if(connections, [](const auto& each) { return !each.socket; });
  }

  // Accepts a connection, and closes one for it if all are in use. REQUIRES: Go
  // was called just before, so that requests that have arrived are read.
  void Accept(absl::Time now) {
    if (AllWait()) return;
    if (connections.size() >= most) {
      const auto goes =
          std::ranges::min_element(connections, {}, &Connection::state);
      if (goes->state == State::kReading) {
        goes->Refuse(kHttpUnavailable,
                     "too many connections: this was the oldest that had not "
                     "asked for anything",
                     now);
        goes->Go(now);
      }
      connections.erase(goes);
    }
    UniqueFd next(
        accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // If no descriptor is free, the connection would wake poll without end.
    if (!next) return absl::SleepFor(kTick);
    connections.push_back({std::move(next), now + kReadLimit});
  }

  // Returns whether all connections are in use and wait for a page.
  bool AllWait() const {
    return connections.size() >= most &&
           std::ranges::count(connections, State::kWaiting,
                              &Connection::state) == std::ssize(connections);
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
    stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
    if (!stop_) return ErrnoStatus(errno, "make an eventfd");
    tcp_ = options.listen;
    if (!tcp_.empty()) Listen(std::move(options.left));
    path_ = options.socket;
    if (!path_.empty()) {
      SLUICE_ASSIGN_OR_RETURN(UniqueFd socket,
                              ListenOnUnix(path_, options.socket_group));
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
  void WhenListening(std::function<void(int fd)> listening) override {
    const MutexLock lock(mutex_);
    listening_ = std::move(listening);
    if (tcp_fd_ >= 0) listening_(tcp_fd_);
  }

 private:
  void Listen(UniqueFd left) {
    const int left_fd = left.get();
    auto socket = ListenOnTcp(tcp_, std::move(left));
    listen_again_at_ =
        socket.ok() ? absl::InfiniteFuture() : clock_.Now() + kListenAgain;
    const MutexLock lock(mutex_);
    over_tcp_ = {tcp_, std::string(socket.status().message())};
    if (!socket.ok()) return;
    tcp_fd_ = socket->get();
    over_tcp_.goes_on = tcp_fd_ == left_fd;
    listeners_.push_back({*std::move(socket), Audience::kAnybody, kMaxTcp});
    if (listening_) listening_(tcp_fd_);
  }

  void Run() {
    while (true) {
      std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
      for (const Listener& each : listeners_) {
        polled.push_back({each.AllWait() ? -1 : each.socket.get(), POLLIN, 0});
      }
      const size_t idle = polled.size();
      for (const Listener& each : listeners_) {
        for (const Connection& of : each.connections) {
          const short events = of.state == State::kWriting ? POLLOUT : POLLIN;
          polled.push_back(
              {of.state == State::kWaiting ? -1 : of.socket.get(), events, 0});
        }
      }
      const absl::Duration wait =
          polled.size() > idle ? kTick
                               : std::clamp(listen_again_at_ - clock_.Now(),
                                            kTick, absl::Hours(1));
      // poll fails if the limit of open files was lowered.
      if (poll(polled.data(), polled.size(),
               static_cast<int>(absl::ToInt64Milliseconds(wait))) < 0) {
        absl::SleepFor(kTick);
      }
      if (polled[0].revents != 0) return;
      const absl::Time now = clock_.Now();
      for (size_t i = 0; i < listeners_.size(); ++i) {
        listeners_[i].Go(now);
        if (polled[i + 1].revents != 0) listeners_[i].Accept(now);
      }
      AnswerWaiting(now);
      if (listen_again_at_ <= now) Listen({});
    }
  }

  // Answers all waiting requests from one snapshot, taken after they arrived.
  // So a flood of requests costs the loop at most one snapshot per kTick.
  void AnswerWaiting(absl::Time now) {
    if (now < next_pages_) return;
    std::optional<PageMaker> pages;
    std::map<std::pair<std::string, Audience>,
             std::shared_ptr<const std::string>>
        answers;
    for (Listener& listener : listeners_) {
      for (Connection& each : listener.connections) {
        if (each.state != State::kWaiting) continue;
        if (!pages) pages.emplace(sources());
        const std::string& path = each.request.path;
        auto& answer = answers[{path, listener.audience}];
        if (!answer) {
          answer = std::make_shared<const std::string>(
              HttpAnswer(pages->Make(path, listener.audience)));
        }
        each.Answer(answer, clock_.Now());
      }
    }
    if (pages) next_pages_ = clock_.Now() + kTick;
  }

  std::shared_ptr<const PageSources> sources() const {
    const MutexLock lock(mutex_);
    return sources_;
  }

  MonotonicClock clock_;
  UniqueFd stop_;     // an eventfd
  std::string path_;  // of the unix socket, which is removed at the end
  std::string tcp_;   // the address to listen at
  std::vector<Listener> listeners_;
  absl::Time next_pages_ = absl::InfinitePast();
  absl::Time listen_again_at_ = absl::InfiniteFuture();
  mutable Mutex mutex_;
  std::shared_ptr<const PageSources> sources_ ABSL_GUARDED_BY(mutex_);
  TcpListener over_tcp_ ABSL_GUARDED_BY(mutex_);
  int tcp_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  std::function<void(int)> listening_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

std::optional<HttpRequest> ReadHttpRequest(std::string_view bytes) {
  const auto refused = [](HttpStatus status, std::string why) {
    return HttpRequest{.status = status, .why = std::move(why)};
  };
  bytes = bytes.substr(0, kMaxHttpRequest);
  if (bytes.find("\r\n\r\n") == bytes.npos) {
    if (bytes.size() < kMaxHttpRequest) return std::nullopt;
    return refused(
        kHttpTooLarge,
        fmt::format("the request is longer than {} bytes", kMaxHttpRequest));
  }
  const std::vector<std::string> words =
      absl::StrSplit(std::string(bytes.substr(0, bytes.find("\r\n"))), ' ');
  if (words.size() != 3 || !words[2].starts_with("HTTP/1.")) {
    return refused(kHttpBadRequest,
                   "the first line is not METHOD PATH HTTP/1.1");
  }
  if (words[0] != "GET" && words[0] != "HEAD") {
    return refused(kHttpNotAllowed, "only GET and HEAD are served");
  }
  if (!words[1].starts_with('/')) {
    return refused(kHttpBadRequest, "the request's path does not begin with /");
  }
  return HttpRequest{words[1].substr(0, words[1].find_first_of("?#")),
                     words[0] == "HEAD"};
}

std::string HttpAnswer(const Page& page) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\n"
      "Connection: close\r\n{}\r\n{}",
      page.status, page.type, page.body.size(),
      page.status == kHttpNotAllowed ? "Allow: GET, HEAD\r\n" : "", page.body);
}

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
