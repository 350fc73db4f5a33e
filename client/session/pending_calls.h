// Requests of a session that have no whole answer yet, kept to be sent again to
// a daemon that took over from one that died. Internal to client.
//
// Each request is executed once: the daemon remembers the ids that it answered
// until a later request states that the answers have arrived (answered_up_to).
// So a second answer equals the first and is ignored. Only a lease granted to
// an abandoned request has no owner; it is given back. Thread safety: none; the
// connection locks.
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
  // Keeps only the last kMostReports step reports: their totals include older
  // ones. ResourceExhausted: kMostPosted requests without a caller have no
  // answer.
  absl::StatusOr<wire::Packet> Add(const wire::Request& request,
                                   std::vector<UniqueFd> fds, Waits waits);
  // Forgets a call that was never sent or is answered.
  void Drop(uint64_t id) { calls_.erase(id); }
  // Records that the caller no longer waits; the answer may still arrive.
  void Abandon(uint64_t id);

  void Progressed(uint64_t id, absl::Time now);
  // Returns the time of the last progress that the daemon reported on the
  // request, or InfinitePast.
  absl::Time progressed_at(uint64_t id) const;

  // Adds a packet of an answer to its request. Returns a lease that is now
  // granted to an abandoned request; it must be given back.
  std::optional<uint64_t> Answer(wire::Message message);
  bool complete(uint64_t id) const;
  // Returns whether a request of this kind has no whole answer.
  bool Awaits(wire::Request::BodyCase kind) const;
  // Returns the answer, in the order of its parts, and drops the request.
  std::vector<wire::Message> Take(uint64_t id);

  // Call it when another daemon took over. Drops incomplete answers and marks
  // their requests to be sent again.
  void Restart();
  // Sends the marked requests in the order of their ids, until `send` returns
  // ResourceExhausted. The next call sends the rest.
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
