// A constant-bandwidth server: what one rank copies in one direction.
//
// A server that was promised a demand has a budget, the demand's bytes. What is
// asked for within the budget is *released*: it has a deadline from then on and
// is promised. The rest is the server's own excess: it is copied from what
// others leave, and released once budget comes back. So whoever asks for more
// than was promised, or all the time, takes nothing from anybody (Abeni and
// Buttazzo 1998, "Integrating multimedia applications in hard real-time
// systems").
//
// Theirs postpones the deadline of a server whose budget is gone, and gives the
// budget back at once. That is right where deadline and period are the same,
// and lets a server starve that was lent much. Here the budget is a hard one,
// and comes back as in the deadline sporadic server (Ghazalie and Baker 1995,
// "Aperiodic servers in a deadline scheduling environment"): what was released
// at t, at t + period. So at no time has a server released more than its demand
// within one period, however it asks, and the demand bound function holds. What
// is lent is not taken off the budget.
//
// Thread safety: none needed; pure.
#pragma once

#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "daemon/bandwidth/demand.h"

namespace sluice::daemon::bandwidth {

class Server {
 public:
  struct Piece {
    absl::Time deadline;
    double bytes;
  };

  // More bytes, in order, behind what was asked for before. `needed_by`: when
  // the rank needs them, where that is later than what was promised; nobody
  // comes earlier by a claim.
  void Ask(double bytes, absl::Time now,
           absl::Time needed_by = absl::InfinitePast());
  // The demand binds from `now` on.
  void Promise(const Demand& demand, absl::Time now);
  // Releases what the budget allows at `now`, each part as of when it could
  // have been: a caller that is a little late every time does not make the
  // period longer.
  void Release(absl::Time now);
  // The newest excess is not wanted after all.
  void Withdraw(double bytes);
  // `bytes` of what was asked for, the oldest first, were granted: of the
  // released ones, or of the others, lent.
  void TakeReleased(double bytes);
  void TakeExcess(double bytes);

  double released() const { return released_; }
  double excess() const { return excess_; }
  // What is released, by deadline; the earliest first.
  const std::deque<Piece>& pieces() const { return pieces_; }
  // When budget comes back that something waits for; never: InfiniteFuture.
  absl::Time next_return() const;

  void CheckInvariants() const;

 private:
  struct Waiting {
    absl::Time asked, needed_by;
    double bytes;
  };
  struct Return {
    absl::Time at;
    double bytes;
  };
  double Size() const { return static_cast<double>(demand_->bytes.count()); }
  void ReleaseAsOf(absl::Time time);
  void ReleaseOne(double bytes, absl::Time now, absl::Time needed_by);

  std::optional<Demand> demand_;
  absl::Time bound_;
  double budget_ = 0;
  std::deque<Return> returns_;  // the earliest first
  std::deque<Piece> pieces_;    // released; deadlines never fall
  std::deque<Waiting> waiting_;
  double released_ = 0;  // sums of these two
  double excess_ = 0;
};

}  // namespace sluice::daemon::bandwidth
