#include "client/train/launch/outcome.h"

#include "absl/strings/cord.h"

namespace sluice::train {
namespace {

constexpr char kLimitedByUrl[] = "sluice/limited_by";
constexpr char kPeerUrl[] = "sluice/caused_by_peer";

}  // namespace

absl::Status DoesNotFit(std::string_view limited_by, std::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(std::string(message));
  status.SetPayload(kLimitedByUrl, absl::Cord(std::string(limited_by)));
  return status;
}

absl::Status DoesNotFit(std::string_view limited_by,
                        const absl::Status& status) {
  return DoesNotFit(limited_by, std::string(status.message()));
}

absl::Status BadInput(std::string_view message) {
  return absl::InvalidArgumentError(std::string(message));
}

absl::Status CausedByPeer(absl::Status status) {
  status.SetPayload(kPeerUrl, absl::Cord(std::string("1")));
  return status;
}

std::string LimitedBy(const absl::Status& status) {
  const auto payload = status.GetPayload(kLimitedByUrl);
  return payload.has_value() ? std::string(*payload) : "none";
}

bool IsCausedByPeer(const absl::Status& status) {
  return status.GetPayload(kPeerUrl).has_value();
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (LimitedBy(status) != "none") return kExitDoesNotFit;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kOutOfRange:
      return kExitBadInput;
    default:
      return kExitFault;
  }
}

}  // namespace sluice::train
