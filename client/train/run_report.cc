#include "client/train/run_report.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "absl/time/clock.h"
#include "client/torch/memory/host_scope.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/outcome.h"
#include "client/train/optimizer/adamw.h"
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

Json Saves(const SaveReport& s) {
  Json failure;
  if (s.failed > 0) {
    failure = {{"step", s.failed_step},
               {"limited_by", s.limited_by},
               {"message", s.failure}};
  }
  return {{"done", s.done},
          {"failed", s.failed},
          {"last_step", s.done > 0 ? Json(s.last_step) : Json()},
          {"last_failure", failure}};
}

Json List(const auto& records, auto entry) {
  Json list = Json::array();
  for (const auto& record : records) list.push_back(entry(record));
  return list;
}

Json PlanChange(const runtime::PlanChangeRecord& change) {
  return {{"after_step", change.step},
          {"plan_id", change.plan},
          {"taken", change.taken},
          {"alpha", change.alpha},
          {"note", change.note}};
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

Json Copies(std::vector<client::CopyRecord> records,
            device::CopyDirection direction) {
  std::erase_if(records, [&](const client::CopyRecord& r) {
    return r.direction != direction;
  });
  return List(records, [](const client::CopyRecord& r) -> Json {
    return {{"name", r.label},
            {"bytes", r.size.count()},
            {"issued_s", r.issued_s},
            {"start_s", r.started_s},
            {"end_s", r.finished_s}};
  });
}

Json Compute(const runtime::SegmentRun& r) {
  return {{"name", std::string(r.kind)},
          {"start_s", r.start_s},
          {"end_s", r.end_s}};
}

Json Block(const runtime::BlockRecord& r) {
  return {{"offset", r.offset.count()},
          {"size", r.size.count()},
          {"born_s", r.born_s},
          {"died_s", r.died_s},
          {"segment", std::string(r.segment)}};
}

// Opens an output file. Refuses a pipe without a reader, because waiting for
// one could not be interrupted.
absl::StatusOr<UniqueFd> OpenToAppend(const std::string& flag,
                                      const std::string& path) {
  UniqueFd fd(open(path.c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK,
                   0666));
  if (fd) {
    fcntl(fd.get(), F_SETFL, O_APPEND);  // writes to a full pipe wait
    return fd;
  }
  const int error = errno;
  return BadInputOfErrno(
      error, fmt::format("{} {}: {}; name a file in a folder that can be "
                         "written",
                         flag, path,
                         error == ENXIO ? "nothing reads from it"
                                        : std::strerror(error)));
}

// Elements searched at a time; their mask must fit into a HostScope.
constexpr int64_t kPiece = 1 << 20;

// Returns the first element that is not finite, or -1.
int64_t FirstIn(const at::Tensor& flat, int64_t offset, int64_t size) {
  for (int64_t at = 0; at < size; at += kPiece) {
    const int64_t n = std::min(kPiece, size - at);
    const at::Tensor wrong =
        at::isfinite(flat.narrow(0, offset + at, n)).logical_not();
    if (!wrong.any().item<bool>()) continue;
    return at + wrong.nonzero()[0].item<int64_t>();
  }
  return -1;
}

std::string PlaceText(const NonFinite& what) {
  if (!what.weight.empty()) {
    return fmt::format("the weight {} is not finite before this step",
                       what.weight);
  }
  if (!std::isfinite(what.loss)) {
    return "all weights are finite, so forward overflowed";
  }
  const std::string text = "the loss is finite, so backward overflowed";
  if (what.gradient.empty()) return text;
  return text + ": first in the gradient of " + what.gradient;
}

std::string Advice(const NonFinite& what, const RunOptions& o) {
  const bool first = what.step == what.first_step;
  if (!what.weight.empty() && what.resumed && first) {
    return "the checkpoint holds it: --resume an earlier one";
  }
  if (what.step == 1) {
    return o.dtype == Dtype::kBf16 ? "no update has been made yet, so look at "
                                     "the data and try --dtype fp32"
                                   : "no update has been made yet, so look at "
                                     "the data and the shape of the model";
  }
  std::string text = fmt::format("lower --lr (it was {:.3g}", what.lr);
  text += what.step <= o.warmup + 1 && o.warmup > 0
              ? fmt::format(", in the warm-up of {} steps)", o.warmup)
              : ")";
  if (what.step <= 20) text += " or raise --warmup";
  if (o.clip == 0) text += ", and clip the gradient (--clip 1; it is off)";
  if (o.dtype == Dtype::kBf16) text += "; --dtype fp32 would rule out overflow";
  if (!o.save.empty()) {
    text +=
        fmt::format("; --resume {} goes on from the last checkpoint", o.save);
  }
  return text;
}

}  // namespace

std::string ToJson(const RunReport& r, const absl::Status& status) {
  const bool stepped = !r.losses.empty();
  const Json json = {{"ok", status.ok()},
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
                     {"resumed", r.resumed},
                     {"saves", Saves(r.saves)},
                     {"log_lines_unwritten", r.log_lines_unwritten},
                     {"plan_changes", List(r.plan_changes, PlanChange)}};
  // A path in the message may not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<JsonlFile>> JsonlFile::Open(
    const std::string& path) {
  std::unique_ptr<JsonlFile> file(new JsonlFile());
  file->path_ = path;
  SLUICE_ASSIGN_OR_RETURN(file->fd_, OpenToAppend("--log-jsonl", path));
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

std::string EndTrace(runtime::RankMemory& memory,
                     const std::vector<client::CopyRecord>& copies) {
  runtime::RegionAllocator& allocator = memory.allocator();
  allocator.RecordTimeline(false);
  const auto blocks = allocator.TakeBlocks();
  const Json json = {
      {"compute", List(allocator.TakeRuns(), Compute)},
      {"h2d", Copies(copies, device::CopyDirection::kHostToDevice)},
      {"d2h", Copies(copies, device::CopyDirection::kDeviceToHost)},
      {"blocks", List(blocks, Block)},
      {"hbm_bytes", memory.size().count()},
      {"planned_bytes", allocator.stats().planned.count()}};
  return json.dump() + "\n";
}

absl::Status WriteTrace(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  return out ? absl::OkStatus() : ErrnoStatus(errno, "--trace " + path);
}

absl::Status CheckTracePath(const std::string& path) {
  const bool was_there = access(path.c_str(), F_OK) == 0;
  SLUICE_RETURN_IF_ERROR(OpenToAppend("--trace", path).status());
  if (!was_there) unlink(path.c_str());
  return absl::OkStatus();
}

std::string FirstNonFinite(const FlatModel& model) {
  const runtime::HostScope host("the search for a non-finite value");
  for (const FlatEntry& entry : model.entries()) {
    const int64_t at = FirstIn(model.flat(), entry.offset, entry.size);
    if (at >= 0) return fmt::format("{} (element {})", entry.name, at);
  }
  return "";
}

std::string Explain(const NonFinite& what, const RunOptions& o) {
  return fmt::format(
      "step {}: the loss is {} and the gradient norm {} (lr {:.3g}, {}); {}; "
      "stopped before the update: {}",
      what.step, what.loss, what.norm, what.lr, Name(o.dtype), PlaceText(what),
      Advice(what, o));
}

}  // namespace sluice::train
