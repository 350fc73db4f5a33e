// Requests of a session that have no whole answer yet. They are kept to be sent
// again, under the same id, to a daemon that took over from one that died.
// Internal to client.
//
// Each request is executed once: the daemon remembers the ids that it answered
// until a later request states that their answers have arrived
// (answered_up_to). So a second answer to a request equals the first. It is
// ignored, because what the first answer granted is in use. Only a lease
// granted to an abandoned request has no owner; it is given back.
//
// Thread safety: none; the connection locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::client {

class PendingCalls {
 public:
  enum class Waits { kCaller, kNobody };
  // Keeps the request and its descriptors, and returns the packet to send.
  // ResourceExhausted: kMostPosted requests that no caller waits for have no
  // answer. Keeps only the last kMostReports step reports, since their totals
  // include older ones.
  absl::StatusOr<wire::Packet> Add(const wire::Request& request,
                                   std::vector<UniqueFd> fds, Waits waits);
  // Forgets a call that was never sent or is answered.
  void Drop(uint64_t id) { calls_.erase(id); }
  // Records that the caller no longer waits; the answer may still arrive.
  void Abandon(uint64_t id);

  // Records that the daemon reported progress on request `id` at `now`.
  void Progressed(uint64_t id, absl::Time now);
  // Returns the time of the request's last progress, or InfinitePast if there
  // was none.
  absl::Time progressed_at(uint64_t id) const;

  // Adds a packet of an answer to its request. If the answer is now whole and
  // grants a lease to an abandoned request, returns this lease, which must be
  // given back.
  std::optional<uint64_t> Answer(wire::Message message);
  bool complete(uint64_t id) const;
  // Returns whether a request of this kind has no whole answer.
  bool Awaits(wire::Request::BodyCase kind) const;
  // Returns the answer, in the order of its parts, and drops the request.
  std::vector<wire::Message> Take(uint64_t id);

  // Call it when another daemon took over. Drops the parts of incomplete
  // answers and marks their requests to be sent again.
  void Restart();
  // Sends the marked requests again, in the order of their ids, until `send`
  // returns ResourceExhausted because there is no room. The next call sends the
  // rest.
  using Send = absl::FunctionRef<absl::Status(const wire::Packet&,
                                              std::span<const int>)>;
  void SendUnsent(Send send);

  static constexpr size_t kMostPosted = 1024;
  static constexpr size_t kMostReports = 64;

 private:
  struct Call {
    wire::Packet packet;
    std::vector<UniqueFd> fds;
    Waits waits = Waits::kCaller;
    bool unsent = false;
    std::map<uint32_t, wire::Message> parts;
    absl::Time progressed_at = absl::InfinitePast();
  };
  static bool IsWhole(const Call& call);
  size_t Posted() const;
  void ForgetOldReports();

  std::map<uint64_t, Call> calls_;
  uint64_t next_id_ = 1;
};

}  // namespace sluice::client
