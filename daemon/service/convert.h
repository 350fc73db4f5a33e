// Translates between the wire's messages and policy's; decides nothing.
//
// Thread safety: pure functions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/core.h"
#include "daemon/core/requests.h"
#include "proto/base/unique_fd.h"
#include "proto/session.pb.h"

namespace sluice::daemon {

// Converts a checked wire request (wire::CheckRequest) to policy's.
// InvalidArgument: a plan id that is not a number.
absl::StatusOr<Request> ToRequest(const wire::Request& request);

// One packet and the descriptors sent with it; several packets may share a
// descriptor's owner.
struct Outgoing {
  wire::Packet packet;
  std::vector<std::shared_ptr<const UniqueFd>> fds;
};

// The reply for a refused request.
wire::Packet ErrorPacket(RequestId request, const absl::Status& status);

// The pool's figures now. Memory reserved for others is not free for `rank`;
// null: for an observer.
void FillPool(const Core& core, PoolId pool, const Principal* rank,
              wire::Pool* to);

// The node's part of a Welcome; `rank`: the session that will lease there, null
// for an observer. What is free of a NUMA node that is not its GPU's is what
// the rank may borrow of it.
void FillNode(const Core& core, const std::string& sim_directory,
              const Session* rank, wire::Welcome& welcome);

// Splits a lease into as many parts as its descriptors need, at most `most` in
// each; `fds[i]` is slices[i]'s.
std::vector<Outgoing> GrantedParts(
    RequestId request, const GrantedReply& granted,
    std::span<const std::shared_ptr<const UniqueFd>> fds, size_t most);

// Converts a notice without a descriptor (all but PlanReady: the caller adds
// its plan).
wire::Event ToEvent(const Notice& notice);

}  // namespace sluice::daemon
