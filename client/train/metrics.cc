#include "client/train/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr int kBarWidth = 20;

std::string Bar(int64_t step, int64_t steps) {
  const int done = steps > 0 ? static_cast<int>(kBarWidth * step / steps) : 0;
  std::string bar(static_cast<size_t>(std::clamp(done, 0, kBarWidth)), '=');
  bar.resize(kBarWidth, ' ');
  return "[" + bar + "] ";
}

std::string RateText(double per_second) {
  return per_second >= 10000 ? fmt::format("{:.1f}k", per_second / 1000)
                             : fmt::format("{:.0f}", per_second);
}

}  // namespace

std::string ToJsonLine(const StepMetrics& m) {
  const nlohmann::ordered_json json = {
      {"step", m.step},
      {"loss", m.loss},
      {"grad_norm", m.grad_norm},
      {"lr", m.lr},
      {"tokens", m.tokens},
      {"seconds", m.seconds},
      {"expected_seconds", m.expected_seconds},
      {"tokens_per_second", m.tokens_per_second()},
      {"hbm_peak_bytes", m.hbm_peak.count()},
      {"hbm_total_bytes", m.hbm_total.count()},
      {"host_bytes", m.host.count()},
      {"grant_wait_seconds", m.grant_wait_seconds},
      {"stall_seconds", m.stall_seconds},
      {"h2d_bytes", m.h2d.count()},
      {"d2h_bytes", m.d2h.count()},
      {"plan_mismatches", m.plan_mismatches},
      {"plan_changes", m.plan_changes}};
  return json.dump();
}

std::string ProgressLine(const StepMetrics& m, int64_t steps, bool bar) {
  return fmt::format(
      "step {}/{} {}loss {:.4f}  {} tokens/s  HBM {} of {}  host {}  grant "
      "wait {:.2f} s",
      m.step, steps, bar ? Bar(m.step, steps) : "", m.loss,
      RateText(m.tokens_per_second()), FormatBytes(m.hbm_peak),
      FormatBytes(m.hbm_total), FormatBytes(m.host), m.grant_wait_seconds);
}

absl::StatusOr<std::unique_ptr<StepLog>> StepLog::Open(const std::string& jsonl,
                                                       int64_t steps,
                                                       Console* console) {
  std::unique_ptr<StepLog> log(new StepLog());
  log->steps_ = steps;
  log->console_ = console;
  if (!jsonl.empty()) {
    SLUICE_ASSIGN_OR_RETURN(log->file_, JsonlFile::Open(jsonl));
  }
  return log;
}

StepLog::~StepLog() = default;

void StepLog::Show(const StepMetrics& metrics) {
  const absl::Time now = absl::Now();
  const bool due = console_->terminal() || metrics.step == steps_ ||
                   now - shown_ > absl::Seconds(2);
  if (!due) return;
  shown_ = now;
  console_->Line(ProgressLine(metrics, steps_, console_->terminal()));
}

void StepLog::Step(const StepMetrics& metrics) {
  Show(metrics);
  if (file_ == nullptr) return;
  file_->Append(ToJsonLine(metrics));
  const std::string note = file_->TakeNote();
  if (!note.empty()) Note(note);
}

int64_t StepLog::unwritten() const {
  return file_ != nullptr ? file_->waiting() + file_->lost() : 0;
}

}  // namespace sluice::train
