// Marks a fault that the end of another rank caused.
//
// The code that waited for the other rank marks its status, and the mark
// travels with the status. The process that watches all ranks ignores marked
// faults and looks for the rank that failed first. A status code does not
// suffice: a lost GPU is Unavailable too.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace sluice {

inline constexpr char kPeerUrl[] = "sluice/caused_by_peer";

inline absl::Status CausedByPeer(absl::Status status) {
  status.SetPayload(kPeerUrl, absl::Cord(std::string("1")));
  return status;
}

inline bool IsCausedByPeer(const absl::Status& status) {
  return status.GetPayload(kPeerUrl).has_value();
}

}  // namespace sluice
