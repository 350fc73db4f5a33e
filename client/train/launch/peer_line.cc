#include "client/train/launch/peer_line.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/train/launch/outcome.h"
#include "proto/base/peer_fault.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr int kTickMs = 100;

// Makes TCP send up to four probes, one second apart, after two silent seconds.
void KeepAlive(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  for (const auto& [name, value] :
       {std::pair(TCP_KEEPIDLE, 2), {TCP_KEEPINTVL, 1}, {TCP_KEEPCNT, 4}}) {
    setsockopt(fd, IPPROTO_TCP, name, &value, sizeof(value));
  }
}

// Listens on every address of this node, as c10d's store does.
absl::StatusOr<UniqueFd> ListenAnywhere(int64_t& port) {
  // An IPv6 socket accepts IPv4, too.
  for (const int family : {AF_INET6, AF_INET}) {
    UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in6 address{};  // sockaddr_in has its port in the same place
    address.sin6_family = static_cast<sa_family_t>(family);
    socklen_t size =
        family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (fd && bind(fd.get(), any, size) == 0 && listen(fd.get(), 1024) == 0 &&
        getsockname(fd.get(), any, &size) == 0) {
      port = ntohs(address.sin6_port);
      return fd;
    }
  }
  return absl::UnavailableError(fmt::format(
      "listen for the other ranks' ends: {}", std::strerror(errno)));
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& host, int64_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  std::string why = error != 0 ? gai_strerror(error) : "";
  UniqueFd fd;
  for (const addrinfo* at = found; at != nullptr && !fd; at = at->ai_next) {
    fd = UniqueFd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{10, 0};  // limits connect, too
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (fd && connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) break;
    why = std::strerror(errno);
    fd.Reset();
  }
  if (found != nullptr) freeaddrinfo(found);
  if (fd) return fd;
  return absl::UnavailableError(fmt::format(
      "connect to rank 0 at {}:{}, which passes on the ends of ranks: {}", host,
      port, why));
}

void SendTo(int fd, const std::string& line) {
  // Lines are few and short: if the buffer is full, the node is dead.
  send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerLine>> PeerLine::Hold(OnDeath on_death) {
  std::random_device random;
  Place place{.token = static_cast<int64_t>(uint64_t{random()} << 32 |
                                            uint64_t{random()})};
  SLUICE_ASSIGN_OR_RETURN(UniqueFd listener, ListenAnywhere(place.port));
  return std::unique_ptr<PeerLine>(
      new PeerLine(place, std::move(listener), {}, std::move(on_death)));
}

absl::StatusOr<std::unique_ptr<PeerLine>> PeerLine::Reach(
    const std::string& address, Place place, int rank, OnDeath on_death) {
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(address, place.port));
  KeepAlive(fd.get());
  SendTo(fd.get(), fmt::format("{} {}\n", place.token, rank));
  std::list<Peer> zero;
  zero.push_back({std::move(fd), 0});
  return std::unique_ptr<PeerLine>(
      new PeerLine(place, {}, std::move(zero), std::move(on_death)));
}

PeerLine::PeerLine(Place place, UniqueFd listener, std::list<Peer> peers,
                   OnDeath on_death)
    : place_(place),
      listener_(std::move(listener)),
      on_death_(std::move(on_death)),
      peers_(std::move(peers)),
      thread_([this] { Run(); }) {}

PeerLine::~PeerLine() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  thread_.join();
}

void PeerLine::Tell(const std::string& what) {
  const MutexLock lock(mutex_);
  if (!died_.empty() || quiet_) return;
  died_ = what.substr(0, what.find('\n'));
  Send("died " + died_);
}

void PeerLine::End() {
  const MutexLock lock(mutex_);
  if (!std::exchange(quiet_, true)) Send("end");
}

void PeerLine::Send(const std::string& line) {
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0) SendTo(peer.fd.get(), line + "\n");
  }
}

void PeerLine::Run() {
  MutexLock lock(mutex_);
  while (!ending_) {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
      const bool open = peer.closed_at == absl::InfiniteFuture();
      polled.push_back({open ? peer.fd.get() : -1, POLLIN, 0});
    }
    lock.Unlock();
    poll(polled.data(), polled.size(), kTickMs);
    lock.Lock();
    Look();
    if (heard_.empty() || quiet_) continue;
    const std::string heard = std::exchange(heard_, "");
    lock.Unlock();
    on_death_(heard);
    lock.Lock();
  }
}

void PeerLine::Look() {
  std::erase_if(peers_, [this](Peer& peer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !Read(peer);
  });
  // No message reports the death of rank 0, so other ranks wait for none.
  const absl::Duration naming = listener_ ? kNaming : absl::ZeroDuration();
  for (const Peer& peer : peers_) {
    if (absl::Now() - peer.closed_at >= naming) {
      Hear(fmt::format("rank {}", peer.rank));
    }
  }
  while (listener_) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) break;
    KeepAlive(fd.get());
    peers_.push_back({std::move(fd)});
  }
}

void PeerLine::Hear(const std::string& what) {
  if (!died_.empty()) return;
  died_ = heard_ = what;
  if (listener_) Send("died " + what);
}

bool PeerLine::Read(Peer& peer) {
  char some[256];
  ssize_t n = 0;
  while ((n = recv(peer.fd.get(), some, sizeof(some), MSG_DONTWAIT)) > 0) {
    peer.unread.append(some, static_cast<size_t>(n));
  }
  const bool closed = n == 0 || (errno != EAGAIN && errno != EINTR);
  for (size_t end; (end = peer.unread.find('\n')) != std::string::npos;) {
    const std::string line = peer.unread.substr(0, end);
    peer.unread.erase(0, end + 1);
    if (!Obey(peer, line)) return false;
  }
  if (closed) peer.closed_at = std::min(peer.closed_at, absl::Now());
  return peer.rank >= 0 || (!closed && peer.unread.size() < sizeof(some));
}

bool PeerLine::Obey(Peer& peer, const std::string& line) {
  constexpr std::string_view kDied = "died ";
  if (peer.rank < 0) {
    const std::string token = fmt::format("{} ", place_.token);
    if (!line.starts_with(token)) return false;
    peer.rank = std::atoi(line.c_str() + token.size());
    if (!died_.empty()) SendTo(peer.fd.get(), "died " + died_ + "\n");
  } else if (line.starts_with(kDied)) {
    Hear(line.substr(kDied.size()));
  }
  return line != "end";
}

PeerWatch::PeerWatch(std::function<void(const absl::Status&)> on_timeout,
                     std::function<void()> on_evicted,
                     std::function<void(const std::string&)> on_gone)
    : on_timeout_(std::move(on_timeout)),
      on_evicted_(std::move(on_evicted)),
      on_gone_(std::move(on_gone)),
      thread_([this] { Run(); }) {}

PeerWatch::~PeerWatch() {
  Disarm();
  thread_.join();
}

void PeerWatch::Attach(client::Session& session, OnPeerDied on_peer_died) {
  {
    const MutexLock lock(calling_);
    on_peer_died_ = std::move(on_peer_died);
  }
  session.OnEvent(
      [this](const client::SessionEvent& event) { OnEvent(event); });
}

void PeerWatch::Disarm() {
  const MutexLock lock(mutex_);
  disarmed_ = true;
  changed_.NotifyAll();
}

absl::Status PeerWatch::why() const {
  const MutexLock lock(mutex_);
  return why_;
}

void PeerWatch::OnEvent(const client::SessionEvent& event) {
  using Kind = client::SessionEvent::Kind;
  if (event.kind == Kind::kDisconnected) on_gone_(event.detail);
  // A lost or ending daemon slows no step, because mappings stay.
  if (event.kind == Kind::kEvicted &&
      Keep(absl::UnavailableError(
          fmt::format("the daemon evicted this rank: {}", event.detail)))) {
    on_evicted_();
  }
  if (event.kind == Kind::kPeerDied) PeerDied(event.detail);
}

void PeerWatch::PeerDied(const std::string& what) {
  const bool to_end = Keep(CausedByPeer(absl::UnavailableError(
      fmt::format("{} ended; this rank ends too", what))));
  const MutexLock lock(calling_);
  if (to_end && on_peer_died_) on_peer_died_(what);
}

bool PeerWatch::Keep(const absl::Status& why) {
  const MutexLock lock(mutex_);
  if (!why_.ok()) return false;
  why_ = why;
  changed_.NotifyAll();
  return !disarmed_;
}

absl::Status PeerWatch::Explain(const absl::Status& status, bool interrupted) {
  MutexLock lock(mutex_);
  const auto deadline = CondVar::Deadline(kNews);
  while (IsCausedByPeer(status) && why_.ok() &&
         changed_.WaitUntil(mutex_, deadline)) {
  }
  const absl::Status why = why_;
  if (why.ok() || LimitedBy(status) != "none") return status;
  const bool early = !status.ok() || interrupted;
  const bool explains = IsCausedByPeer(why) ? IsCausedByPeer(status) : early;
  return explains ? why : status;
}

void PeerWatch::Run() {
  MutexLock lock(mutex_);
  while (!disarmed_ && why_.ok()) changed_.Wait(mutex_);
  const absl::Duration grace = IsCausedByPeer(why_) ? kGrace : kEvictedGrace;
  const auto deadline = CondVar::Deadline(grace);
  while (!disarmed_ && changed_.WaitUntil(mutex_, deadline)) {
  }
  if (disarmed_) return;
  const absl::Status why = why_;
  lock.Unlock();
  on_timeout_(why);
}

}  // namespace sluice::train
