// One session: the process at the other end and what it said in its Hello.
//
// States (transitions in Core only):
//   half-open  connected, no Hello yet; ended by a deadline
//   attached   said Hello: a rank, or an observer
//   closed     its socket ended; its process may live on and map memory
//   (gone)     the pidfd reported the end: the session is forgotten
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/core/effects.h"
#include "daemon/core/grants.h"
#include "daemon/core/requests.h"
#include "proto/base/table.h"

namespace sluice::daemon {

// Remembers requests, so that one repeated under the same id is executed once
// and answered again, until its client acknowledges the answer. If a client
// does not acknowledge, the last kWindow are remembered, or fewer where their
// errors have more than kMostText. Older ones are refused; ids count up,
// roughly.
class RequestHistory {
 public:
  static constexpr size_t kWindow = 256;
  static constexpr size_t kMostText = 16 << 10;  // bytes, of errors
  enum class Seen { kNew, kRunning, kAnswered, kForgotten };

  Seen Begin(RequestId id);
  void Answer(RequestId id, const Reply& reply);
  // The answer to `id` did not leave: `why` is its answer from now on.
  void TakeBack(RequestId id, const absl::Status& why);
  // The lease that answered `id` ended: its list of extents, which can be
  // long, is of no more use.
  void LeaseEnded(RequestId id);
  const Reply& answer(RequestId id) const;
  // The client repeats no request up to this one that was answered.
  void Acknowledge(RequestId up_to);
  // The session is closed: no request comes again.
  void Clear();
  // Those that run, but for these: repeated, they are executed again.
  void ForgetRunning(const std::set<RequestId>& but_for);

  // nullopt: it is running.
  using Requests = Table<RequestId, std::optional<Reply>>;
  Requests& requests() { return requests_; }
  const Requests& requests() const { return requests_; }
  RequestId newest_forgotten() const { return newest_forgotten_; }
  void Load(Requests::Rows requests, RequestId newest_forgotten);
  bool operator==(const RequestHistory&) const = default;

 private:
  void Forget(RequestId id);

  Requests requests_;
  RequestId newest_forgotten_;
  size_t text_ = 0;  // bytes of errors
};

struct Session {
  enum class State { kHalfOpen, kAttached, kClosed };

  SessionId id;
  Peer peer;
  State state = State::kHalfOpen;
  absl::Time connected_at;
  HelloRequest hello;  // once attached
  int grant_slot = -1;
  RequestHistory history;

  bool had_leases_at_close = false;
  PlanId told_plan;  // since it last submitted a profile; 0: none yet
  // Of its job, which it may not have been told yet.
  struct PeerDeath {
    Rank rank;
    std::string reason;
    bool operator==(const PeerDeath&) const = default;
  };
  std::vector<PeerDeath> deaths_to_tell;

  std::optional<StepReport> last_step;
  Bytes hbm_peak;
  // What it has of its GPU outside its lease, of what ranks have told; none: it
  // has told nothing, or it is not known what was there before.
  std::optional<Bytes> outside;
  // Bytes copied since it began: by its step reports, by its use page, and
  // as they are counted for its GPU (the larger: a page moves within a step).
  Directions copies_reported = {0, 0}, copies_seen = {0, 0},
             copies_counted = {0, 0};

  bool operator==(const Session&) const = default;
  // Answers one of its requests, which runs.
  void Answer(RequestId request, Reply reply, Effects& effects);
  // "rank 0 of job a", or "observer"; once it has said Hello.
  std::string Label() const;
  // "rank 0 of job a, process 7".
  std::string Described() const;
  PoolId gpu() const { return {PoolKind::kGpu, hello.gpu.value()}; }
  JobKey job() const { return {peer.principal, hello.job}; }
  // The sums of its steps, as far as they are counted.
  StepTotals totals() const {
    return last_step ? last_step->totals : StepTotals{};
  }
  bool is_rank() const { return state == State::kAttached && !hello.observer; }
  // Also when it is closed: its process may hold what it had.
  bool was_rank() const { return grant_slot >= 0; }
};

}  // namespace sluice::daemon
