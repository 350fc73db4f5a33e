#include "daemon/service/sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/crash/crash_point.h"

namespace sluice::daemon {
namespace {

// Requests are served for this long before the loop polls for events. This
// limits how long a new request waits behind a flood; a poll takes about 0.1
// ms.
constexpr absl::Duration kTurn = absl::Microseconds(250);

}  // namespace

Sessions::Sessions(Parts parts, Handlers handlers)
    : parts_(parts), handlers_(std::move(handlers)), in_flight_(parts.quotas) {}

void Sessions::Watch(SessionId id, const Principal& who, UniqueFd socket,
                     UniqueFd pidfd) {
  channels_[id] = std::make_unique<Channel>(
      Channel::Shared{parts_.loop, parts_.closer, parts_.quotas, &in_flight_,
                      &queued_},
      who, std::move(socket), std::move(pidfd),
      Channel::Handlers{
          .readable = [this, id, who] { turns_.Add(who, id); },
          .message = [this, id](wire::Message& m) { handlers_.message(id, m); },
          .ended = [this, id] { handlers_.ended(id); },
          .broken = [this,
                     id](const std::string& why) { handlers_.broken(id, why); },
          .gone = [this, id] { handlers_.gone(id); }});
}

void Sessions::Adopt(SessionId id, const Principal& who, UniqueFd socket,
                     UniqueFd pidfd) {
  parts_.quotas->Charge(who, Resource::kSessions);
  if (socket) in_flight_.Adopt(socket.get(), who);
  Watch(id, who, std::move(socket), std::move(pidfd));
}

Channel* Sessions::Find(SessionId id) const {
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : found->second.get();
}

void Sessions::Send(SessionId id, Outgoing out) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;
  out.packet.set_generation(parts_.generation);
  channel->Send(std::move(out));
  Pass("packet-sent");
}

void Sessions::HoldUntilKept(SessionId id, int use_page) {
  Channel* const channel = Find(id);
  Handover& handover = *parts_.handover;
  if (channel == nullptr || !handover.keeps()) return;
  handover.Keep(Handover::SocketOf(id), channel->socket());
  handover.Keep(Handover::ProcessOf(id), channel->pidfd());
  handover.Keep(Handover::UsePageOf(id), use_page);
  Pass("session-put");
  channel->Hold();
  handover.WhenKept([this, id] {
    Pass("session-stored");
    if (Channel* const kept = Find(id)) kept->Release();
    Pass("session-released");
  });
}

void Sessions::EndSocket(SessionId id) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;
  const std::string name = Handover::SocketOf(id);
  if (channel->open() && parts_.handover->Kept(name)) {
    // If no descriptor is free for the duplicate, the store closes the socket.
    auto socket = channel->DuplicateSocket();
    if (socket.ok()) {
      parts_.handover->DropSocket(name, *std::move(socket));
    } else {
      parts_.handover->Drop(name);
    }
  }
  channel->CloseSocket();
}

void Sessions::Forget(SessionId id) {
  const auto channel = channels_.find(id);
  if (channel == channels_.end()) return;
  parts_.handover->Drop(Handover::ProcessOf(id));
  Pass("process-dropped");
  turns_.Remove(id);
  parts_.quotas->GiveBack(channel->second->who(), Resource::kSessions);
  if (graveyard_.empty()) {
    parts_.loop->Post([this] { graveyard_.clear(); });
  }
  graveyard_.push_back(std::move(channel->second));
  channels_.erase(channel);
}

void Sessions::Leave() {
  for (const auto& [id, channel] : channels_) channel->Leave();
}

bool Sessions::TakeTurns() {
  const absl::Time end = parts_.loop->now() + kTurn;
  absl::Time now = parts_.loop->now();
  while (now < end) {
    const auto id = turns_.Next();
    if (!id) return false;
    const auto channel = channels_.find(*id);
    if (channel != channels_.end() && channel->second->ReadOne()) {
      turns_.Add(channel->second->who(), *id);
    }
    const absl::Time start = std::exchange(now, parts_.loop->now());
    turns_.Spent(now - start);
  }
  return !turns_.empty();
}

absl::Time Sessions::deadline() const {
  absl::Time next = in_flight_.deadline();
  // Called twice a turn, so it looks only at channels with a queue.
  for (const Channel* channel : queued_) {
    next = std::min({next, channel->stall_deadline(), channel->retry_at()});
  }
  return next;
}

void Sessions::Expire() {
  const absl::Time now = parts_.loop->now();
  for (UniqueFd& done : in_flight_.Sweep(now)) {
    parts_.closer->CloseSession(std::move(done));
  }
  std::vector<SessionId> waiting, stalled;
  for (const auto& [id, channel] : channels_) {
    if (channel->retry_at() <= now) waiting.push_back(id);
  }
  for (SessionId id : waiting) {
    if (Channel* const channel = Find(id)) channel->Retry(now);
  }
  for (const auto& [id, channel] : channels_) {
    if (channel->stall_deadline() <= now) stalled.push_back(id);
  }
  for (SessionId id : stalled) {
    Channel* const channel = Find(id);
    if (channel == nullptr || !channel->HasStalled(now)) continue;
    handlers_.broken(id,
                     fmt::format("it has read nothing for {:g} s",
                                 absl::ToDoubleSeconds(Channel::kStallLimit)));
  }
}

}  // namespace sluice::daemon
