#include "daemon/service/in_flight.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "proto/base/find.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {

int InFlight::most() const {
  return static_cast<int>(std::clamp<int64_t>(
      quotas_->share(Resource::kInFlight).each, 1, kMostOfASession));
}

bool InFlight::Received(int fd, Socket& socket) {
  int unread = 0;
  if (ioctl(fd, SIOCOUTQ, &unread) == 0 && unread > 0) return false;
  quotas_->GiveBack(socket.who, Resource::kInFlight, socket.count);
  socket.count = 0;
  return true;
}

absl::Status InFlight::Take(int socket, const Principal& who, int count,
                            absl::Time now) {
  if (count == 0) return absl::OkStatus();
  Socket& of = sockets_.try_emplace(socket, Socket{.who = who}).first->second;
  if (of.count > 0) Received(socket, of);
  if (of.count + count > most() && of.count > 0) {
    return absl::ResourceExhaustedError("it has not received what it was sent");
  }
  absl::Status may = quotas_->May(who, Resource::kInFlight, count);
  if (!may.ok() && swept_ + kAgain <= now) {
    Look(now);
    may = quotas_->May(who, Resource::kInFlight, count);
  }
  if (!may.ok() && quotas_->used(who, Resource::kInFlight) > 0) {
    return ShortOf(Shortage::kOpenFiles, "other peers leave no room");
  }
  quotas_->Charge(who, Resource::kInFlight, count);
  of.count += count;
  return absl::OkStatus();
}

void InFlight::Adopt(int socket, const Principal& who) {
  const int count = most();
  Socket& of = sockets_[socket] = {.who = who, .count = count};
  quotas_->Charge(who, Resource::kInFlight, count);
  Received(socket, of);
}

void InFlight::Undo(int socket, int count) {
  if (count == 0) return;
  Socket& of = sockets_.at(socket);
  SLUICE_CHECK(of.count >= count);
  of.count -= count;
  quotas_->GiveBack(of.who, Resource::kInFlight, count);
}

UniqueFd InFlight::End(UniqueFd socket) {
  Socket* const found = FindOrNull(sockets_, socket.get());
  if (found == nullptr) return socket;
  if (Received(socket.get(), *found)) {
    sockets_.erase(socket.get());
    return socket;
  }
  quotas_->Charge(found->who, Resource::kSessions);
  ++ended_;
  found->ended = std::move(socket);
  return UniqueFd();
}

absl::Time InFlight::deadline() const {
  return ended_ > 0 ? swept_ + kAgain : absl::InfiniteFuture();
}

void InFlight::Look(absl::Time now) {
  swept_ = now;
  for (auto& [fd, socket] : sockets_) {
    if (socket.count > 0) Received(fd, socket);
  }
}

std::vector<UniqueFd> InFlight::Sweep(absl::Time now) {
  std::vector<UniqueFd> done;
  if (now < swept_ + kAgain) return done;
  Look(now);
  for (auto& [fd, socket] : sockets_) {
    if (socket.count > 0 || !socket.ended) continue;
    --ended_;
    quotas_->GiveBack(socket.who, Resource::kSessions);
    done.push_back(std::move(socket.ended));
  }
  std::erase_if(sockets_,
                [](const auto& each) { return each.second.count == 0; });
  return done;
}

}  // namespace sluice::daemon
