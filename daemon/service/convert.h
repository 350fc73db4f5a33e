// Converts between the wire's messages and policy's. Decides nothing.
//
// Thread safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "daemon/core/core.h"
#include "daemon/core/effects.h"
#include "proto/base/unique_fd.h"
#include "proto/session.pb.h"

namespace sluice::daemon {

// InvalidArgument: a plan id is no number. REQUIRES: wire::CheckRequest.
absl::StatusOr<Request> ToRequest(const wire::Request& request);

struct Outgoing {
  wire::Packet packet;
  std::vector<SharedFd> fds;
};

wire::Packet ErrorPacket(RequestId request, const absl::Status& status);

// Fills `to` with the pool's sizes. Memory that is reserved for others does not
// count as free for `rank`. It does for an observer (null).
void FillPool(const Core& core, PoolId pool, const Principal* rank,
              wire::Pool* to);

// Fills `welcome` for `rank` (null: an observer). On NUMA nodes other than that
// of its GPU, only what the rank may borrow counts as free.
void FillNode(const Core& core, const std::string& sim_directory,
              const Session* rank, wire::Welcome& welcome);

// Returns packets with at most `most` descriptors; fds[i] belongs to slices[i].
std::vector<Outgoing> GrantedParts(RequestId request,
                                   const GrantedReply& granted,
                                   std::span<const SharedFd> fds, size_t most);

// Converts a notice; the caller adds the descriptor of its plan.
wire::Event ToEvent(const Notice& notice);

}  // namespace sluice::daemon
