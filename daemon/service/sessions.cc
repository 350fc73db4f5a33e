#include "daemon/service/sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "proto/base/find.h"

namespace sluice::daemon {
namespace {

// Requests are served for this long before the loop polls for events. This
// limits how long a new request waits behind a flood; a poll takes about 0.1
// ms.
constexpr absl::Duration kTurn = absl::Microseconds(250);

}  // namespace

void Sessions::Watch(SessionId id, const Principal& who, UniqueFd socket,
                     UniqueFd pidfd) {
  channels_[id] = std::make_unique<Channel>(
      &shared_, id, who, std::move(socket), std::move(pidfd));
}

void Sessions::Adopt(SessionId id, const Principal& who, UniqueFd socket,
                     UniqueFd pidfd) {
  shared_.quotas->Charge(who, Resource::kSessions);
  if (socket) shared_.in_flight.Adopt(socket.get(), who);
  Watch(id, who, std::move(socket), std::move(pidfd));
}

Channel* Sessions::Find(SessionId id) const {
  const auto* const found = FindOrNull(channels_, id);
  return found != nullptr ? found->get() : nullptr;
}

void Sessions::Send(SessionId id, Outgoing out) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;
  out.packet.set_generation(generation_);
  channel->Send(std::move(out));
  Pass("packet-sent");
}

void Sessions::HoldUntilKept(SessionId id, int use_page) {
  Channel* const channel = Find(id);
  if (channel == nullptr || !handover_.keeps()) return;
  handover_.Keep(Handover::SocketOf(id), channel->socket().get());
  handover_.Keep(Handover::ProcessOf(id), channel->pidfd());
  handover_.Keep(Handover::UsePageOf(id), use_page);
  Pass("session-put");
  channel->Hold();
  handover_.WhenKept([this, id] {
    Pass("session-stored");
    if (Channel* const kept = Find(id)) kept->Release();
    Pass("session-released");
  });
}

void Sessions::EndSocket(SessionId id) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;
  const std::string name = Handover::SocketOf(id);
  if (channel->open() && handover_.Kept(name)) {
    // If no descriptor is free for the duplicate, the store closes the socket.
    auto socket = channel->socket().Duplicate();
    socket.ok() ? handover_.DropSocket(name, *std::move(socket))
                : handover_.Drop(name);
  }
  channel->CloseSocket();
}

void Sessions::Forget(SessionId id) {
  auto forgotten = channels_.extract(id);
  if (forgotten.empty()) return;
  handover_.Drop(Handover::ProcessOf(id));
  Pass("process-dropped");
  shared_.turns.Remove(id);
  shared_.quotas->GiveBack(forgotten.mapped()->who(), Resource::kSessions);
  if (graveyard_.empty()) {
    shared_.loop->Post([this] { graveyard_.clear(); });
  }
  graveyard_.push_back(std::move(forgotten.mapped()));
}

void Sessions::Leave() {
  for (const auto& [id, channel] : channels_) channel->Leave();
}

bool Sessions::TakeTurns() {
  const absl::Time end = shared_.loop->now() + kTurn;
  absl::Time now = shared_.loop->now();
  while (now < end) {
    const auto id = shared_.turns.Next();
    if (!id) return false;
    Channel* const channel = Find(*id);
    if (channel != nullptr && channel->ReadOne()) {
      shared_.turns.Add(channel->who(), *id);
    }
    const absl::Time start = std::exchange(now, shared_.loop->now());
    shared_.turns.Spent(now - start);
  }
  return !shared_.turns.empty();
}

absl::Time Sessions::deadline() const {
  absl::Time next = shared_.in_flight.deadline();
  // Called twice a turn, so it looks only at channels with a queue.
  for (const Channel* channel : shared_.queued) {
    next = std::min({next, channel->stall_deadline(), channel->retry_at()});
  }
  return next;
}

void Sessions::Expire() {
  const absl::Time now = shared_.loop->now();
  for (UniqueFd& done : shared_.in_flight.Sweep(now)) {
    shared_.closer->CloseSession(std::move(done));
  }
  std::vector<SessionId> queued;
  for (const Channel* channel : shared_.queued) queued.push_back(channel->id());
  std::ranges::sort(queued);
  for (SessionId id : queued) {
    if (Channel* const channel = Find(id)) channel->Retry(now);
  }
  for (SessionId id : queued) {
    Channel* const channel = Find(id);
    if (channel == nullptr || !channel->HasStalled(now)) continue;
    shared_.handlers.broken(
        id, fmt::format("it has read nothing for {:g} s",
                        absl::ToDoubleSeconds(Channel::kStallLimit)));
  }
}

}  // namespace sluice::daemon
