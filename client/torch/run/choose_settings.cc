#include "client/torch/run/choose_settings.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "client/torch/placement.h"
#include "client/torch/run/rehearsal.h"
#include "client/train/launch/outcome.h"
#include "client/train/watch/words.h"
#include "planner/stream/loss_rows.h"
#include "planner/stream/stream_shape.h"
#include "planner/stream/transients.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// The first run of a size warms caches and the host region's pages up.
constexpr int kTimes = 2;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Rated {
  stream::Settings settings;
  double seconds = kNever;
};

class Chooser {
 public:
  explicit Chooser(const StepperContext& context)
      : context_(context), options_(*context.options) {}

  absl::StatusOr<ChosenSettings> Choose();

 private:
  absl::Status Open();
  stream::SettingsQuestion Ask() const;
  stream::StreamOptions ProbeOf(int64_t chunk) const;
  absl::StatusOr<bool> FitsEverywhere(const stream::StreamOptions& probe);
  absl::StatusOr<double> Try(int64_t chunk);
  absl::StatusOr<std::vector<double>> WorstOfRanks(std::vector<double> own);
  void MeasureLinks();
  std::string Why() const;

  const StepperContext& context_;
  const RunOptions& options_;
  std::unique_ptr<client::CopyEngine> copies_;
  std::unique_ptr<client::Region> host_;
  stream::SettingsQuestion question_;
  stream::LinkSpeeds links_;
  std::vector<Rated> best_;  // of each chunk size that was tried
};

absl::Status Chooser::Open() {
  // The timeline tells how fast links are.
  SLUICE_ASSIGN_OR_RETURN(copies_, StartCopies(context_, /*timeline=*/true));
  const client::NodeLimits limits = context_.memory->session().limits();
  links_ = {limits.h2d_bytes_per_second, limits.d2h_bytes_per_second};
  question_ = Ask();
  return absl::OkStatus();
}

stream::SettingsQuestion Chooser::Ask() const {
  stream::SettingsQuestion q;
  q.stream.model = options_.model;
  q.stream.layout = stream::ChunkLayout(options_.seq_len, options_.seq_len,
                                        context_.environment->world_size);
  q.stream.rank = context_.environment->rank;
  q.stream.dtype = options_.dtype;
  q.stream.alpha = options_.alpha;
  q.stream.fractions = options_.fractions;
  q.seq_len = options_.seq_len;
  if (options_.chunk > 0) q.chunk = std::min(options_.chunk, options_.seq_len);
  if (options_.prefetch > 0) q.prefetch = options_.prefetch;
  q.order = options_.order;
  q.may_keep = options_.keep;
  // Ids and labels come before the plan; a mask of labels, and scalars.
  const Bytes text(17 * ((options_.seq_len - 1) / q.stream.layout.ranks() + 1));
  q.hbm = std::max(Bytes(0), context_.memory->size() -
                                 context_.memory->allocator().stats().used -
                                 text - KiB(64));
  q.host = HostRoom(context_);
  return q;
}

// One layer, two chunks and the tail, nothing dropped: every segment runs.
stream::StreamOptions Chooser::ProbeOf(int64_t chunk) const {
  stream::StreamOptions probe = question_.stream;
  probe.layout = stream::ChunkLayout(question_.seq_len, chunk,
                                     question_.stream.layout.ranks());
  probe.alpha = 1;
  probe.fractions.clear();
  probe.model.layers = 1;
  probe.layout = stream::CalibrationLayout(probe);
  return probe;
}

absl::StatusOr<std::vector<double>> Chooser::WorstOfRanks(
    std::vector<double> own) {
  runtime::Collectives* const all = context_.collectives;
  if (all == nullptr) return own;
  const runtime::HostScope host("step times of the ranks");
  const auto count = static_cast<int64_t>(own.size());
  at::Tensor each =
      at::zeros({all->world_size(), count}, runtime::OnHost(at::kDouble));
  double* const values = each.data_ptr<double>();
  // Infinity times nothing is no number: it travels as a large one.
  for (int64_t i = 0; i < count; ++i) {
    values[all->rank() * count + i] = std::min(own[i], 1e300);
  }
  SLUICE_RETURN_IF_ERROR(ClassifyStepError(all->SumAll(each)));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t r = 0; r < all->world_size(); ++r) {
      own[i] = std::max(own[i], values[r * count + i]);
    }
    if (own[i] >= 1e300) own[i] = kNever;
  }
  return own;
}

// A rank that ran out of memory in a rehearsal would be out of step, so it is
// asked before.
absl::StatusOr<bool> Chooser::FitsEverywhere(
    const stream::StreamOptions& probe) {
  const Bytes hbm =
      stream::RingBytes(probe) +
      stream::TransientBytes(probe, {.threads = context_.options->threads});
  const Bytes needed = stream::HostBytes(probe);
  bool fits = hbm <= question_.hbm && needed <= question_.host;
  if (fits && (host_ == nullptr || host_->size() < needed)) {
    host_.reset();
    auto leased = context_.memory->session().LeaseHost(needed);
    fits = leased.ok();
    if (fits) host_ = *std::move(leased);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto worst,
                          WorstOfRanks({fits ? 0.0 : kNever}));
  return std::isfinite(worst[0]);
}

// What the daemon promises is a GPU's share while all GPUs behind its link
// copy; a rehearsal, with all ranks of this run, sees what there is now.
void Chooser::MeasureLinks() {
  double bytes[2] = {}, seconds[2] = {};
  for (const client::CopyRecord& copy : copies_->TakeTimeline()) {
    const bool out = copy.direction == device::CopyDirection::kDeviceToHost;
    bytes[out] += static_cast<double>(copy.size.count());
    seconds[out] += copy.finished_s - copy.started_s;
  }
  const auto raise = [&](bool out, double& known) {
    if (seconds[out] > 0) known = std::max(known, bytes[out] / seconds[out]);
  };
  raise(false, links_.h2d);
  raise(true, links_.d2h);
}

// The least seconds of a step with chunks of this size.
absl::StatusOr<double> Chooser::Try(int64_t chunk) {
  const stream::StreamOptions probe = ProbeOf(chunk);
  std::vector<plan::SegmentKind> recorded;
  SLUICE_ASSIGN_OR_RETURN(const bool fits, FitsEverywhere(probe));
  if (fits) {
    auto options = ContextOptions(context_, probe, copies_.get());
    options.host = host_->data();
    options.host_size = host_->size();
    SLUICE_ASSIGN_OR_RETURN(recorded, Rehearse(context_, options, kTimes));
    MeasureLinks();
  }
  const auto all = stream::SettingsOf(question_, chunk);
  std::vector<double> seconds;
  for (const stream::Settings& settings : all) {
    seconds.push_back(
        stream::PredictSeconds(question_, settings, recorded, links_));
  }
  SLUICE_ASSIGN_OR_RETURN(seconds, WorstOfRanks(std::move(seconds)));
  const auto least = std::ranges::min_element(seconds);
  best_.push_back({all[least - seconds.begin()], *least});
  return *least;
}

std::string Chooser::Why() const {
  std::string text;
  for (const Rated& rated : best_) {
    text += fmt::format(
        "{}{}: {}", text.empty() ? "" : "; ", stream::ToString(rated.settings),
        std::isfinite(rated.seconds) ? "about " + Duration(rated.seconds)
                                     : "does not fit");
  }
  return text;
}

absl::StatusOr<ChosenSettings> Chooser::Choose() {
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, Open()));
  for (stream::ChunkSearch search(question_); search.Next().has_value();) {
    SLUICE_ASSIGN_OR_RETURN(const double seconds, Try(*search.Next()));
    search.Tell(seconds);
  }
  const Rated& best = *std::ranges::min_element(best_, {}, &Rated::seconds);
  if (!std::isfinite(best.seconds)) {
    // Rings are least with the least of everything.
    const auto smallest = std::ranges::min_element(
        best_, {}, [](const Rated& rated) { return rated.settings.chunk; });
    return ChosenSettings{
        {.chunk = smallest->settings.chunk,
         .prefetch = question_.prefetch.value_or(1),
         .order = question_.order.value_or(stream::BackwardOrder::kKeysOuter)},
        fmt::format("chunk {}: by the estimate nothing that was tried fits",
                    smallest->settings.chunk)};
  }
  return ChosenSettings{best.settings,
                        fmt::format("{}, the fastest of those tried ({})",
                                    stream::ToString(best.settings), Why())};
}

}  // namespace

absl::StatusOr<ChosenSettings> ChooseSettings(const StepperContext& context) {
  return Chooser(context).Choose();
}

RunOptions With(RunOptions options, const stream::Settings& settings) {
  options.chunk = settings.chunk;
  options.prefetch = settings.prefetch;
  options.order = settings.order;
  options.resident = settings.resident;
  return options;
}

}  // namespace sluice::train
