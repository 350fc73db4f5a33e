#include "proto/wire.h"

namespace sluice::wire {

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

}  // namespace sluice::wire
