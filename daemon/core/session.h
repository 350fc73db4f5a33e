// A session: the process at the other end, its Hello and its requests.
//
// README.md has its states; SessionTable changes them.
// Thread safety: one thread (core.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/core/effects.h"
#include "daemon/core/grants.h"
#include "proto/base/table.h"

namespace sluice::daemon {

// Remembers answers until the client acknowledges them, so that a repeated
// request (with the same id) is not executed again. Keeps at most the last
// kWindow answers, or fewer if their errors exceed kMostText. Ids roughly count
// up; ids older than the kept answers are refused.
class RequestHistory {
 public:
  static constexpr size_t kWindow = 256;
  static constexpr size_t kMostText = 16 << 10;  // bytes of errors
  enum class Seen { kNew, kRunning, kAnswered, kForgotten };

  Seen Begin(RequestId id);
  void Answer(RequestId id, const Reply& reply);
  // Replaces the answer to `id`, which could not be sent, by the error `why`.
  void TakeBack(RequestId id, const absl::Status& why);
  // Makes an answered request a running one, because it is executed again.
  void Reopen(RequestId id) { requests_.Edit(id).reset(); }
  // Drops the list of extents, which can be long, from the answer to `id`,
  // because its lease has ended.
  void LeaseEnded(RequestId id);
  const Reply& answer(RequestId id) const { return *requests_.at(id); }
  // Forgets answered requests up to `up_to`: the client will not repeat them.
  void Acknowledge(RequestId up_to);
  void Clear();
  // Forgets running requests except `but_for`, so that they are executed if
  // they are repeated.
  void ForgetRunning(const std::set<RequestId>& but_for);

  // The answer of each request; nullopt: the request is running.
  using Requests = Table<RequestId, std::optional<Reply>>;
  Requests& requests() { return requests_; }
  const Requests& requests() const { return requests_; }
  RequestId newest_forgotten() const { return newest_forgotten_; }
  void Load(Requests::Rows requests, RequestId newest_forgotten);
  bool operator==(const RequestHistory&) const = default;

 private:
  void Forget(RequestId id);
  // Forgets answered requests, oldest first, while more(id) is true.
  void ForgetAnswered(auto more);

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
  HelloRequest hello;  // set once attached
  int grant_slot = -1;
  RequestHistory history;

  bool had_leases_at_close = false;
  PlanId told_plan;  // sent since the rank's last profile; 0: none
  // The death of a rank of the same job, of which this rank may not know yet.
  struct PeerDeath {
    Rank rank;
    std::string reason;
    bool operator==(const PeerDeath&) const = default;
  };
  std::vector<PeerDeath> deaths_to_tell;

  std::optional<StepReport> last_step;
  Bytes hbm_peak;
  // How much of its GPU this rank holds outside its lease, by ranks' reports.
  // Unset without a report, or if the GPU's use before its ranks is unknown.
  std::optional<Bytes> outside;
  // Bytes copied since the session began. `copies_reported`: by step reports.
  // `copies_seen`: by the use page, which also grows within a step.
  // `copies_counted`: the larger of these, as counted for the GPU.
  Directions copies_reported = {0, 0}, copies_seen = {0, 0},
             copies_counted = {0, 0};

  bool operator==(const Session&) const = default;
  void Answer(RequestId request, Reply reply, Effects& effects);
  // Returns "rank 0 of job a" or "observer". REQUIRES: the Hello has come.
  std::string Label() const;
  // Returns "rank 0 of job a, process 7".
  std::string Described() const;
  PoolId gpu() const { return {PoolKind::kGpu, hello.gpu.value()}; }
  JobKey job() const { return {peer.principal, hello.job}; }
  StepTotals totals() const {
    return last_step ? last_step->totals : StepTotals{};
  }
  bool is_rank() const { return state == State::kAttached && !hello.observer; }
  // Includes closed sessions, since the process may still hold memory.
  bool was_rank() const { return grant_slot >= 0; }
};

}  // namespace sluice::daemon
