#include "client/torch/run/peer_fault.h"

#include <string>

#include "absl/strings/cord.h"
#include "proto/base/shortage.h"

namespace sluice::runtime {
namespace {

constexpr char kPeerUrl[] = "sluice/caused_by_peer";

}  // namespace

absl::Status CausedByPeer(absl::Status status) {
  status.SetPayload(kPeerUrl, absl::Cord(std::string("1")));
  return status;
}

bool IsCausedByPeer(const absl::Status& status) {
  return status.GetPayload(kPeerUrl).has_value();
}

absl::Status LostPeer(const absl::Status& status) {
  const bool lost = status.code() == absl::StatusCode::kUnavailable &&
                    ShortageOf(status) == Shortage::kNone;
  return lost ? CausedByPeer(status) : status;
}

}  // namespace sluice::runtime
