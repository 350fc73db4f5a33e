// Requests of a session without a whole answer. They are kept so that they can
// be sent again, under the same id, to a daemon that took over from one that
// died. Internal to client.
//
// Each request is executed once: the daemon knows the ids of those that it
// answered, until a later request says that their answers are here
// (answered_up_to). So a second answer to one is the same answer and is
// ignored: what it grants is in use. Only a lease granted to a request that its
// caller abandoned, and that is still in here, has no owner and is given back.
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
  // Keeps the request and its descriptors. Returns the packet to send.
  // ResourceExhausted: kMostPosted requests without a waiting caller are not
  // answered. The last kMostReports step reports are kept; they include the
  // sums of older ones.
  absl::StatusOr<wire::Packet> Add(const wire::Request& request,
                                   std::vector<UniqueFd> fds, Waits waits);
  // Forgets a call that was never sent or that is answered.
  void Drop(uint64_t id) { calls_.erase(id); }
  // The caller no longer waits; the answer may still come.
  void Abandon(uint64_t id);

  // At `now` the daemon said that it works on the answer to that request.
  void Progressed(uint64_t id, absl::Time now);
  // When it said so last; InfinitePast: it did not.
  absl::Time progressed_at(uint64_t id) const;

  // Puts a packet that answers to its request. Returns the lease to give back
  // if the answer is whole and grants one to an abandoned request.
  std::optional<uint64_t> Answer(wire::Message message);
  bool complete(uint64_t id) const;
  // Whether a request of this kind has no whole answer.
  bool Awaits(wire::Request::BodyCase kind) const;
  // The answer, in the order of its parts; the request is dropped.
  std::vector<wire::Message> Take(uint64_t id);

  // Another daemon reads from now on: drops the parts of incomplete answers and
  // marks their requests to be sent again.
  void Restart();
  // Sends what is to be sent again, in the order of the ids, until `send` says
  // that there is no room (ResourceExhausted); the rest is for the next time.
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
