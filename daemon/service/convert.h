// Converts between the wire's messages and policy's. Decides nothing.
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

// One packet and the descriptors to send with it; several packets may share a
// descriptor.
struct Outgoing {
  wire::Packet packet;
  std::vector<std::shared_ptr<const UniqueFd>> fds;
};

// Returns the reply to a refused request.
wire::Packet ErrorPacket(RequestId request, const absl::Status& status);

// Fills in the current figures of the pool. Memory reserved for others does not
// count as free for `rank`, which is null for an observer.
void FillPool(const Core& core, PoolId pool, const Principal* rank,
              wire::Pool* to);

// Fills in the node's part of a Welcome. `rank` is the session that will lease
// there, null for an observer. On NUMA nodes other than that of its GPU, only
// what the rank may borrow counts as free.
void FillNode(const Core& core, const std::string& sim_directory,
              const Session* rank, wire::Welcome& welcome);

// Splits a lease into as many packets as its descriptors need, with at most
// `most` in each; `fds[i]` belongs to slices[i].
std::vector<Outgoing> GrantedParts(
    RequestId request, const GrantedReply& granted,
    std::span<const std::shared_ptr<const UniqueFd>> fds, size_t most);

// Converts a notice. The caller adds the plan's descriptor to a PlanReady,
// PlanChanged or TakenOver.
wire::Event ToEvent(const Notice& notice);

}  // namespace sluice::daemon
