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

// Keeps the error of the first field that is out of range. `Range` and
// `Seconds` format no other, because a packet may have thousands of fields.
class Checks {
 public:
  void Add(const absl::Status& status) { status_.Update(status); }
  void Range(std::string_view what, uint64_t value, uint64_t first,
             uint64_t last) {
    if (!status_.ok() || (value >= first && value <= last)) return;
    Add(absl::InvalidArgumentError(fmt::format("{} is {}, it must be {} to {}",
                                               what, value, first, last)));
  }
  void Seconds(std::string_view what, double value,
               double most = kMaxStepSeconds) {
    if (!status_.ok() || (value >= 0 && value <= most)) return;
    Add(absl::InvalidArgumentError(
        fmt::format("{} is {}, it must be 0 to {} ({} years)", what, value,
                    most, std::round(most / kMaxStepSeconds))));
  }
  absl::Status First() const { return status_; }

 private:
  absl::Status status_;
};

absl::Status CheckRange(std::string_view what, uint64_t value, uint64_t first,
                        uint64_t last) {
  Checks checks;
  checks.Range(what, value, first, last);
  return checks.First();
}

std::string Spoken(Protocols range) {
  return range.oldest == range.newest
             ? fmt::format("protocol {}", range.newest)
             : fmt::format("protocols {} to {}", range.oldest, range.newest);
}

absl::Status Check(const Hello& hello) {
  Checks checks;
  checks.Add(
      AgreeOnProtocol({hello.oldest_protocol(), hello.protocol()}).status());
  checks.Add(CheckName("job", hello.job(), hello.observer()));
  if (hello.observer()) return checks.First();
  checks.Range("world_size", hello.world_size(), 1, 1 << 20);
  checks.Range("rank", hello.rank(), 0, hello.world_size() - 1);
  checks.Range("local_ranks", hello.local_ranks(), 1,
               std::min<uint64_t>(hello.world_size(), kMaxOrdinal));
  checks.Range("gpu", hello.gpu(), 0, kMaxOrdinal - 1);
  return checks.First();
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

absl::Status Check(const StepReport& report) {
  Checks checks;
  checks.Range("step", report.step(), 0, kMaxSize - 1);
  checks.Seconds("seconds", report.seconds());
  checks.Seconds("stall_seconds", report.stall_seconds());
  checks.Seconds("grant_wait_seconds", report.grant_wait_seconds());
  for (const uint64_t size :
       {report.bytes_h2d(), report.bytes_d2h(), report.hbm_peak_bytes(),
        report.host_peak_bytes()}) {
    checks.Range("a size of the step report", size, 0, kMaxSize - 1);
  }
  checks.Range("tokens", report.tokens(), 0, kMaxStepCount);
  checks.Range("plan_mismatches", report.plan_mismatches(), 0, kMaxStepCount);
  if (report.map_seconds_size() > kMaxMaps) {
    checks.Add(absl::InvalidArgumentError(
        fmt::format("a step report tells of {} mapped leases, at most {}",
                    report.map_seconds_size(), kMaxMaps)));
  }
  for (const double seconds : report.map_seconds()) {
    checks.Seconds("map_seconds", seconds);
  }
  // `loss` is not checked: it may be NaN, which an operator should see.
  const StepTotals& totals = report.totals();
  for (const uint64_t sum :
       {totals.reports(), totals.bytes_h2d(), totals.bytes_d2h(),
        totals.tokens(), totals.plan_mismatches()}) {
    checks.Range("a sum of the step report", sum, 0, kMaxStepSum);
  }
  for (const double seconds :
       {totals.stall_seconds(), totals.grant_wait_seconds()}) {
    checks.Seconds("seconds of all steps", seconds, kMaxTotalSeconds);
  }
  return checks.First();
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

void ToWire(const ::sluice::StepReport& report, StepReport* out) {
  out->set_step(static_cast<uint64_t>(report.step));
  out->set_seconds(report.seconds);
  out->set_bytes_h2d(report.h2d.size());
  out->set_bytes_d2h(report.d2h.size());
  out->set_stall_seconds(report.stall_seconds);
  out->set_grant_wait_seconds(report.grant_wait_seconds);
  out->set_hbm_peak_bytes(report.hbm_peak.size());
  out->set_host_peak_bytes(report.host_peak.size());
  out->set_tokens(static_cast<uint64_t>(report.tokens));
  out->set_loss(report.loss);
  out->set_plan_mismatches(static_cast<uint64_t>(report.plan_mismatches));
  const ::sluice::StepTotals& totals = report.totals;
  if (totals.reports == 0) return;
  StepTotals* sums = out->mutable_totals();
  sums->set_reports(static_cast<uint64_t>(totals.reports));
  sums->set_bytes_h2d(totals.h2d.size());
  sums->set_bytes_d2h(totals.d2h.size());
  sums->set_stall_seconds(totals.stall_seconds);
  sums->set_grant_wait_seconds(totals.grant_wait_seconds);
  sums->set_tokens(static_cast<uint64_t>(totals.tokens));
  sums->set_plan_mismatches(static_cast<uint64_t>(totals.plan_mismatches));
}

::sluice::StepReport FromWire(const StepReport& report) {
  const auto bytes = [](uint64_t n) { return Bytes(static_cast<int64_t>(n)); };
  const StepTotals& sums = report.totals();
  return {.step = static_cast<int64_t>(report.step()),
          .seconds = report.seconds(),
          .h2d = bytes(report.bytes_h2d()),
          .d2h = bytes(report.bytes_d2h()),
          .stall_seconds = report.stall_seconds(),
          .grant_wait_seconds = report.grant_wait_seconds(),
          .hbm_peak = bytes(report.hbm_peak_bytes()),
          .host_peak = bytes(report.host_peak_bytes()),
          .tokens = static_cast<int64_t>(report.tokens()),
          .loss = report.loss(),
          .plan_mismatches = static_cast<int64_t>(report.plan_mismatches()),
          .totals = {
              .reports = static_cast<int64_t>(sums.reports()),
              .h2d = bytes(sums.bytes_h2d()),
              .d2h = bytes(sums.bytes_d2h()),
              .stall_seconds = sums.stall_seconds(),
              .grant_wait_seconds = sums.grant_wait_seconds(),
              .tokens = static_cast<int64_t>(sums.tokens()),
              .plan_mismatches = static_cast<int64_t>(sums.plan_mismatches())}};
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
  // Hello carries up to kMaxShown descriptors of device nodes.
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
