#include "client/train/launch/peer_watch.h"

#include <fmt/format.h>

#include "client/train/launch/outcome.h"
#include "proto/base/peer_fault.h"

namespace sluice::train {

PeerWatch::PeerWatch(std::function<void(const std::string&)> on_timeout,
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
  session.OnEvent(
      [this, on_peer_died = std::move(on_peer_died)](
          const client::SessionEvent& event) { OnEvent(event, on_peer_died); });
}

void PeerWatch::Disarm() {
  const MutexLock lock(mutex_);
  disarmed_ = true;
  changed_.NotifyAll();
}

std::string PeerWatch::reason() const {
  const MutexLock lock(mutex_);
  return reason_;
}

bool PeerWatch::evicted() const {
  const MutexLock lock(mutex_);
  return evicted_;
}

void PeerWatch::OnEvent(const client::SessionEvent& event,
                        const OnPeerDied& on_peer_died) {
  using Kind = client::SessionEvent::Kind;
  if (event.kind == Kind::kDisconnected) on_gone_(event.detail);
  // A daemon that is gone or going slows no step: mappings stay.
  const bool ends =
      event.kind == Kind::kPeerDied || event.kind == Kind::kEvicted;
  if (!ends) return;
  const bool died = event.kind == Kind::kPeerDied;
  const std::string reason =
      died ? fmt::format("{} ended; this rank ends too", event.detail)
           : fmt::format("the daemon evicted this rank: {}", event.detail);
  const bool to_end = Keep(event, reason);
  if (to_end && died && on_peer_died) on_peer_died(reason);
}

bool PeerWatch::Keep(const client::SessionEvent& event,
                     const std::string& reason) {
  const MutexLock lock(mutex_);
  if (!reason_.empty()) return false;
  evicted_ = event.kind == client::SessionEvent::Kind::kEvicted;
  if (evicted_) on_evicted_();
  reason_ = reason;
  changed_.NotifyAll();
  return !disarmed_;
}

absl::Status PeerWatch::Explain(const absl::Status& status,
                                bool interrupted) const {
  const std::string why = reason();
  if (why.empty() || LimitedBy(status) != "none") return status;
  if (evicted()) {
    const bool early = !status.ok() || interrupted;
    return early ? absl::UnavailableError(why) : status;
  }
  return IsCausedByPeer(status) ? CausedByPeer(absl::UnavailableError(why))
                                : status;
}

void PeerWatch::Run() {
  MutexLock lock(mutex_);
  while (!disarmed_ && reason_.empty()) changed_.Wait(mutex_);
  const absl::Duration grace = evicted_ ? kEvictedGrace : kGrace;
  const auto deadline = CondVar::Deadline(grace);
  while (!disarmed_ && changed_.WaitUntil(mutex_, deadline)) {
  }
  if (disarmed_) return;
  const std::string reason = reason_;
  lock.Unlock();
  on_timeout_(reason);
}

}  // namespace sluice::train
