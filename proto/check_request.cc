#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::wire {
namespace {

constexpr uint64_t kMaxSize = uint64_t{1} << 60;
constexpr uint64_t kMaxOrdinal = 1024;
constexpr size_t kMaxName = 64;
// Limit of the seconds summed over all steps of a session.
constexpr double kMaxTotalSeconds = 1000 * kMaxStepSeconds;

absl::Status CheckName(std::string_view what, const std::string& name,
                       bool may_be_empty) {
  if (name.empty() && !may_be_empty) {
    return absl::InvalidArgumentError(
        fmt::format("{} is empty: give 1 to {} characters", what, kMaxName));
  }
  if (name.size() > kMaxName) {
    return absl::InvalidArgumentError(fmt::format(
        "{} has {} characters, the limit is {}", what, name.size(), kMaxName));
  }
  for (const unsigned char c : name) {
    // Labels and logs would have to escape quotes and backslashes.
    if (c <= 0x20 || c >= 0x7f || c == '"' || c == '\\') {
      return absl::InvalidArgumentError(
          fmt::format("{} has a character with code {}: use printable ASCII "
                      "without blanks, quotes and backslashes",
                      what, static_cast<int>(c)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRange(std::string_view what, uint64_t value, uint64_t first,
                        uint64_t last) {
  if (value >= first && value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is {}, it must be {} to {}", what, value, first, last));
}

absl::Status CheckSeconds(std::string_view what, double value,
                          double most = kMaxStepSeconds) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is {}, it must be 0 to {} ({} years)", what, value, most,
                  std::round(most / kMaxStepSeconds)));
}

std::string Spoken(Protocols range) {
  return range.oldest == range.newest
             ? fmt::format("protocol {}", range.newest)
             : fmt::format("protocols {} to {}", range.oldest, range.newest);
}

absl::Status Check(const Hello& hello) {
  SLUICE_RETURN_IF_ERROR(
      AgreeOnProtocol({hello.oldest_protocol(), hello.protocol()}).status());
  SLUICE_RETURN_IF_ERROR(CheckName("job", hello.job(), hello.observer()));
  if (hello.observer()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      CheckRange("world_size", hello.world_size(), 1, 1 << 20));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("rank", hello.rank(), 0, hello.world_size() - 1));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("local_ranks", hello.local_ranks(), 1,
                 std::min<uint64_t>(hello.world_size(), kMaxOrdinal)));
  return CheckRange("gpu", hello.gpu(), 0, kMaxOrdinal - 1);
}

absl::Status Check(const Lease& lease) {
  if (lease.kind() != Lease::GPU && lease.kind() != Lease::HOST) {
    return absl::InvalidArgumentError(
        fmt::format("lease kind is {}, it must be 0 (GPU) or 1 (HOST)",
                    static_cast<int>(lease.kind())));
  }
  SLUICE_RETURN_IF_ERROR(
      CheckRange("lease ordinal", lease.ordinal(), 0, kMaxOrdinal - 1));
  return CheckRange("lease bytes", lease.bytes(), 1, kMaxSize - 1);
}

absl::Status Check(const StepTotals& totals) {
  for (const uint64_t sum :
       {totals.reports(), totals.bytes_h2d(), totals.bytes_d2h(),
        totals.tokens(), totals.plan_mismatches()}) {
    SLUICE_RETURN_IF_ERROR(
        CheckRange("a sum of the step report", sum, 0, kMaxStepSum));
  }
  for (const double seconds :
       {totals.stall_seconds(), totals.grant_wait_seconds()}) {
    SLUICE_RETURN_IF_ERROR(
        CheckSeconds("seconds of all steps", seconds, kMaxTotalSeconds));
  }
  return absl::OkStatus();
}

absl::Status Check(const StepReport& report) {
  SLUICE_RETURN_IF_ERROR(CheckRange("step", report.step(), 0, kMaxSize - 1));
  SLUICE_RETURN_IF_ERROR(CheckSeconds("seconds", report.seconds()));
  SLUICE_RETURN_IF_ERROR(CheckSeconds("stall_seconds", report.stall_seconds()));
  SLUICE_RETURN_IF_ERROR(
      CheckSeconds("grant_wait_seconds", report.grant_wait_seconds()));
  for (const uint64_t size :
       {report.bytes_h2d(), report.bytes_d2h(), report.hbm_peak_bytes(),
        report.host_peak_bytes()}) {
    SLUICE_RETURN_IF_ERROR(
        CheckRange("a size of the step report", size, 0, kMaxSize - 1));
  }
  SLUICE_RETURN_IF_ERROR(
      CheckRange("tokens", report.tokens(), 0, kMaxStepCount));
  SLUICE_RETURN_IF_ERROR(CheckRange("plan_mismatches", report.plan_mismatches(),
                                    0, kMaxStepCount));
  if (report.map_seconds_size() > kMaxMaps) {
    return absl::InvalidArgumentError(
        fmt::format("a step report tells of {} mapped leases, at most {}",
                    report.map_seconds_size(), kMaxMaps));
  }
  for (const double seconds : report.map_seconds()) {
    SLUICE_RETURN_IF_ERROR(CheckSeconds("map_seconds", seconds));
  }
  // Not checked: loss may be NaN, which an operator should see.
  return Check(report.totals());
}

absl::Status Check(const PlanTaken& taken) {
  SLUICE_RETURN_IF_ERROR(CheckRange("plan_id", taken.plan_id(), 1, UINT64_MAX));
  return CheckRange("bytes of the plan's note", taken.note().size(), 0, 512);
}

}  // namespace

absl::Status CheckJob(const std::string& name) {
  return CheckName("job", name, /*may_be_empty=*/false);
}

absl::Status CheckFields(const Request& request) {
  switch (request.body_case()) {
    case Request::kHello:
      return Check(request.hello());
    case Request::kLease:
      return Check(request.lease());
    case Request::kFree:
      return CheckRange("lease_id", request.free().lease_id(), 1, UINT64_MAX);
    case Request::kSubmitProfile:
      return absl::OkStatus();
    case Request::kStepReport:
      return Check(request.step_report());
    case Request::kPlanTaken:
      return Check(request.plan_taken());
    case Request::kGpuUse:
      return CheckRange("used bytes of the GPU", request.gpu_use().used_bytes(),
                        0, kMaxSize - 1);
    case Request::kGiveUp:
      return CheckRange("request_id", request.give_up().request_id(), 1,
                        UINT64_MAX);
    case Request::kQuery:
      return CheckName("plan_id", request.query().plan_id(), true);
    case Request::BODY_NOT_SET:
      break;
  }
  return absl::UnimplementedError(
      "the request has no body this version knows: install the same version "
      "of client and daemon");
}

absl::StatusOr<uint32_t> AgreeOnProtocol(Protocols client, Protocols daemon) {
  if (client.oldest == 0) client.oldest = client.newest;
  const uint32_t agreed = std::min(client.newest, daemon.newest);
  if (agreed >= client.oldest && agreed >= daemon.oldest) return agreed;
  const bool client_is_older = client.newest < daemon.oldest;
  return absl::FailedPreconditionError(fmt::format(
      "the client speaks {}, this daemon {}: upgrade the {}", Spoken(client),
      Spoken(daemon), client_is_older ? "client's libsluice" : "daemon"));
}

absl::Status CheckRequest(const Message& message) {
  if (!message.packet.has_request()) {
    return absl::InvalidArgumentError(
        "a client sent a packet that is not a request");
  }
  if (message.packet.id() == 0) {
    return absl::InvalidArgumentError("a request's id is 0: ids start at 1");
  }
  const size_t needed = message.packet.request().has_submit_profile() ? 1 : 0;
  // Only Hello may carry descriptors of device nodes; it may carry none.
  const bool shows = message.packet.request().has_hello();
  if (message.fds.size() != needed &&
      !(shows && message.fds.size() <= kMaxShown)) {
    return absl::InvalidArgumentError(
        fmt::format("the request carries {} file descriptors, it must carry {}",
                    message.fds.size(), needed));
  }
  return CheckFields(message.packet.request());
}

}  // namespace sluice::wire
