#include "client/train/launch/peer_watch.h"

#include <fmt/format.h>

#include "client/train/launch/outcome.h"
#include "proto/base/peer_fault.h"

namespace sluice::train {

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
