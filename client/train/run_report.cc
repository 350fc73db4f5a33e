#include "client/train/run_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json Fractions(const std::vector<plan::ClassPlan>& classes) {
  Json json = Json::object();
  for (const plan::ClassPlan& c : classes) {
    json[c.name] = {{"keep", c.fractions.keep},
                    {"swap", c.fractions.swap},
                    {"recompute", c.fractions.recompute}};
  }
  return json;
}

Json ReportSettings(const RunReport& r) {
  if (!r.settings.has_value()) return nullptr;
  return {{"chunk", r.settings->chunk},
          {"prefetch", r.settings->prefetch},
          {"backward_order", stream::Name(r.settings->order)},
          {"resident", r.settings->resident},
          {"rerun_chunks", r.settings->rerun_chunks},
          {"rerun_layers", r.settings->rerun_layers},
          {"kept", r.settings->kept},
          {"why", OrNull(r.settings_why)}};
}

Json Price(const std::optional<stream::StepPrice>& price) {
  if (!price.has_value()) return nullptr;
  return {{"hbm_bytes", price->hbm.count()},
          {"host_bytes", price->host.count()},
          {"recomputed_bytes", price->recomputed.count()},
          {"recompute_seconds", price->recompute_s},
          {"length_gain", price->length_gain()}};
}

Json Resumed(const ResumeReport& r) {
  if (r.checkpoint.empty()) return nullptr;
  return {{"checkpoint", r.checkpoint}, {"step", r.step}, {"run", r.run}};
}

Json LastFailure(const SaveReport& s) {
  if (s.failed == 0) return nullptr;
  return {{"step", s.failed_step},
          {"limited_by", s.limited_by},
          {"message", s.failure}};
}

Json PlanChanges(const std::vector<runtime::PlanChangeRecord>& changes) {
  Json list = Json::array();
  for (const runtime::PlanChangeRecord& change : changes) {
    list.push_back({{"after_step", change.step},
                    {"plan_id", change.plan},
                    {"taken", change.taken},
                    {"alpha", change.alpha},
                    {"note", change.note}});
  }
  return list;
}

constexpr int kBarWidth = 20;
constexpr size_t kMostWaiting = size_t{1} << 20;

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

std::string ToJsonLine(const StepMetrics& m) {
  const Json json = {{"step", m.step},
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

// Formats "step 12/50 [====      ] loss 3.21  12.3k tokens/s  HBM 30.1 MiB of
// 36 MiB …".
std::string ProgressLine(const StepMetrics& m, int64_t steps, bool bar) {
  return fmt::format(
      "step {}/{} {}loss {:.4f}  {} tokens/s  HBM {} of {}  host {}  grant "
      "wait {:.2f} s",
      m.step, steps, bar ? Bar(m.step, steps) : "", m.loss,
      RateText(m.tokens_per_second()), FormatBytes(m.hbm_peak),
      FormatBytes(m.hbm_total), FormatBytes(m.host), m.grant_wait_seconds);
}

}  // namespace

std::string ToJson(const RunReport& r, const absl::Status& status) {
  const bool stepped = !r.losses.empty();
  const Json json = {
      {"ok", status.ok()},
      {"fits", !IsOutOfMemory(status)},
      {"limited_by", LimitedBy(status)},
      {"message", std::string(status.message())},
      {"run", r.run},
      {"method", r.method},
      {"attention", OrNull(r.attention)},
      {"seq_len", r.seq_len},
      {"ranks", r.ranks},
      {"settings", ReportSettings(r)},
      {"price", Price(r.price)},
      {"optimizer_states", stream::Name(r.states)},
      {"optimizer_states_why", OrNull(r.states_why)},
      {"steps", r.steps},
      {"losses", r.losses},
      {"first_loss", stepped ? Json(r.losses.front()) : Json()},
      {"last_loss", stepped ? Json(r.losses.back()) : Json()},
      {"peak_hbm_bytes", r.peak_hbm.count()},
      {"host_bytes", r.host.count()},
      {"hbm_bytes_per_gpu", r.hbm_per_gpu.count()},
      {"tokens_per_second", r.tokens_per_second},
      {"seconds_per_step", r.seconds_per_step},
      {"alpha", r.alpha},
      {"fractions", Fractions(r.fractions)},
      {"plan",
       {{"peak_bytes", r.plan.peak.count()},
        {"lower_bound_bytes", r.plan.lower_bound.count()},
        {"proved_by", r.plan.proved_by},
        {"mismatches", r.plan.mismatches}}},
      {"grant_wait_seconds", r.grant_wait_seconds},
      {"stall_seconds", r.stall_seconds},
      {"interrupted", r.interrupted},
      {"resumed", Resumed(r.resumed)},
      {"saves",
       {{"done", r.saves.done},
        {"failed", r.saves.failed},
        {"last_step", r.saves.done > 0 ? Json(r.saves.last_step) : Json()},
        {"last_failure", LastFailure(r.saves)}}},
      {"log_lines_unwritten", r.log_lines_unwritten},
      {"plan_changes", PlanChanges(r.plan_changes)}};
  // A path in the message may not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<JsonlFile>> JsonlFile::Open(
    const std::string& path) {
  std::unique_ptr<JsonlFile> file(new JsonlFile());
  file->path_ = path;
  file->fd_ = UniqueFd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file->fd_) {
    const int error = errno;
    return BadInput(
        fmt::format("--log-jsonl {}: {}", path, std::strerror(error)), error);
  }
  return file;
}

std::string JsonlFile::Append(const std::string& line) {
  if (text_.size() + line.size() > kMostWaiting) {
    ++lost_;
  } else {
    text_ += line + "\n";
    ++waiting_;
  }
  int error = 0;
  while (!text_.empty()) {
    const ssize_t n = write(fd_.get(), text_.data(), text_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error = n < 0 ? errno : EIO;
      break;
    }
    waiting_ -= std::count(text_.begin(), text_.begin() + n, '\n');
    text_.erase(0, static_cast<size_t>(n));
  }
  const bool failed_before = std::exchange(failing_, error != 0);
  if (failing_ == failed_before) return "";
  if (failing_) {
    return fmt::format(
        "--log-jsonl {}: {}; the run goes on, and what could not be written is "
        "tried again after each step",
        path_, std::strerror(error));
  }
  return fmt::format(
      "--log-jsonl {}: written again{}", path_,
      lost_ > 0 ? fmt::format(", {} lines are lost", lost_) : std::string());
}

void StepLog::Step(const StepMetrics& metrics) {
  const absl::Time now = absl::Now();
  if (console_->terminal() || metrics.step == steps_ ||
      now - shown_ > absl::Seconds(2)) {
    shown_ = now;
    console_->Line(ProgressLine(metrics, steps_, console_->terminal()));
  }
  if (file_ == nullptr) return;
  const std::string note = file_->Append(ToJsonLine(metrics));
  if (!note.empty()) Note(note);
}

int64_t StepLog::unwritten() const {
  return file_ != nullptr ? file_->waiting() + file_->lost() : 0;
}

}  // namespace sluice::train
