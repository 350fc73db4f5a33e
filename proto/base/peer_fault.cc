#include "proto/base/peer_fault.h"

#include <string>

#include "absl/strings/cord.h"

namespace sluice {
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

}  // namespace sluice
