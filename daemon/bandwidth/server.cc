#include "daemon/bandwidth/server.h"

#include <algorithm>
#include <cmath>

#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

// Bytes are divided into shares, so that sums of them are not exact. Less than
// this is none.
constexpr double kNone = 1e-3;

}  // namespace

void Server::Ask(double bytes, absl::Time needed_by) {
  if (bytes <= 0) return;
  waiting_.push_back({needed_by, bytes});
  excess_ += bytes;
}

void Server::Release(absl::Time now) {
  while (!returns_.empty() && returns_.front().at <= now) {
    budget_ += returns_.front().bytes;
    returns_.pop_front();
  }
  while (demand_ && budget_ > kNone && !waiting_.empty()) {
    Piece& next = waiting_.front();
    const double bytes = std::min(budget_, next.bytes);
    ReleaseOne(bytes, now, next.deadline);
    next.bytes -= bytes;
    if (next.bytes <= kNone) DropFirst(waiting_, excess_);
  }
}

void Server::DropFirst(std::deque<Piece>& pieces, double& sum) {
  sum -= pieces.front().bytes;
  pieces.pop_front();
  if (pieces.empty()) sum = 0;
}

void Server::Take(std::deque<Piece>& pieces, double& sum, double bytes) {
  SLUICE_CHECK(bytes <= sum + kNone);
  while (!pieces.empty() && bytes > 0) {
    Piece& first = pieces.front();
    const double part = std::min(bytes, first.bytes);
    first.bytes -= part;
    sum -= part;
    bytes -= part;
    if (first.bytes <= kNone) DropFirst(pieces, sum);
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
  double released = 0, waiting = 0, budget = budget_;
  for (const Piece& piece : pieces_) released += piece.bytes;
  for (const Piece& piece : waiting_) waiting += piece.bytes;
  for (const Return& back : returns_) budget += back.bytes;
  SLUICE_CHECK(std::abs(released - released_) <= 1);
  SLUICE_CHECK(std::abs(waiting - excess_) <= 1);
  if (demand_) SLUICE_CHECK(std::abs(budget - Size()) <= 1);
}

}  // namespace sluice::daemon::bandwidth
