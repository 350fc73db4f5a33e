#include "daemon/bandwidth/server.h"

#include <algorithm>
#include <cmath>

#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

// Bytes are divided into shares, so that sums of them are not exact. Less than
// this is none.
constexpr double kNoBytes = 1e-3;
// What sums may be off after a long time of adding and taking: no fault.
constexpr double kDrift = 1;

template <typename Pieces>
void DropFirst(Pieces& pieces, double& sum) {
  sum -= pieces.front().bytes;
  pieces.pop_front();
  if (pieces.empty()) sum = 0;
}

template <typename Pieces>
void Take(Pieces& pieces, double& sum, double bytes) {
  SLUICE_CHECK(bytes <= sum + kDrift);
  while (!pieces.empty() && bytes > 0) {
    auto& first = pieces.front();
    const double part = std::min(bytes, first.bytes);
    first.bytes -= part;
    sum -= part;
    bytes -= part;
    if (first.bytes <= kNoBytes) DropFirst(pieces, sum);
  }
}

template <typename Pieces>
bool AddsUp(const Pieces& pieces, double sum) {
  for (const auto& piece : pieces) sum -= piece.bytes;
  return std::abs(sum) <= kDrift;
}

}  // namespace

void Server::Ask(double bytes, absl::Time now, absl::Time needed_by) {
  if (bytes <= kNoBytes) return;
  waiting_.push_back({now, needed_by, bytes});
  excess_ += bytes;
}

void Server::Withdraw(double bytes) {
  while (!waiting_.empty() && bytes > 0) {
    Waiting& last = waiting_.back();
    const double part = std::min(bytes, last.bytes);
    last.bytes -= part;
    excess_ -= part;
    bytes -= part;
    if (last.bytes <= kNoBytes) waiting_.pop_back();
  }
  if (waiting_.empty()) excess_ = 0;
}

void Server::Promise(const Demand& demand, absl::Time now) {
  demand_ = demand;
  budget_ = Size();
  bound_ = now;
}

void Server::Release(absl::Time now) {
  if (!demand_) return;
  ReleaseAsOf(bound_);
  while (!returns_.empty() && returns_.front().at <= now) {
    const Return back = returns_.front();
    returns_.pop_front();
    budget_ += back.bytes;
    ReleaseAsOf(back.at);
  }
}

void Server::ReleaseAsOf(absl::Time time) {
  while (budget_ > kNoBytes && !waiting_.empty()) {
    Waiting& next = waiting_.front();
    const double bytes = std::min(budget_, next.bytes);
    ReleaseOne(bytes, std::max(time, next.asked), next.needed_by);
    next.bytes -= bytes;
    if (next.bytes <= kNoBytes) DropFirst(waiting_, excess_);
  }
}

void Server::ReleaseOne(double bytes, absl::Time now, absl::Time needed_by) {
  absl::Time deadline = std::max(now + demand_->deadline, needed_by);
  if (!pieces_.empty()) deadline = std::max(deadline, pieces_.back().deadline);
  if (!pieces_.empty() && pieces_.back().deadline == deadline) {
    pieces_.back().bytes += bytes;
  } else {
    pieces_.push_back({deadline, bytes});
  }
  const absl::Time back = now + demand_->period;
  if (!returns_.empty() && returns_.back().at == back) {
    returns_.back().bytes += bytes;
  } else {
    returns_.push_back({back, bytes});
  }
  budget_ -= bytes;
  released_ += bytes;
  excess_ -= bytes;
}

void Server::TakeReleased(double bytes) { Take(pieces_, released_, bytes); }

void Server::TakeExcess(double bytes) { Take(waiting_, excess_, bytes); }

absl::Time Server::next_return() const {
  return waiting_.empty() || returns_.empty() ? absl::InfiniteFuture()
                                              : returns_.front().at;
}

void Server::CheckInvariants() const {
  SLUICE_CHECK(AddsUp(pieces_, released_));
  SLUICE_CHECK(AddsUp(waiting_, excess_));
  if (demand_) SLUICE_CHECK(AddsUp(returns_, Size() - budget_));
}

}  // namespace sluice::daemon::bandwidth
