#include "client/torch/run/choose_settings.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "client/torch/placement.h"
#include "client/torch/run/agreement.h"
#include "planner/stream/loss_rows.h"
#include "planner/stream/stream_shape.h"
#include "planner/stream/transients.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

absl::Status RunSteps(const RunContext& context,
                      const StreamContext::Options& options, int times) {
  SLUICE_ASSIGN_OR_RETURN(const auto stream, StreamContext::Create(options));
  const int64_t rows =
      options.stream.layout.total_local_rows(options.stream.rank);
  const at::Tensor tokens = at::zeros({rows}, On(options.device, at::kLong));
  for (int i = 0; i < times; ++i) {
    SLUICE_RETURN_IF_ERROR(StreamedStep(*stream, context.weights->weights(),
                                        context.weights->gradients(), tokens,
                                        tokens, options.stream.layout.seq_len())
                               .status());
  }
  return absl::OkStatus();
}

}  // namespace

StreamContext::Options ContextOptions(const RunContext& context,
                                      const stream::StreamOptions& stream,
                                      client::CopyEngine* copies) {
  return {.stream = stream,
          .device = context.memory->device(),
          .collectives = context.collectives,
          .copies = copies,
          .allocator = &context.memory->allocator(),
          .pending = context.weights->pending()};
}

absl::StatusOr<std::vector<plan::SegmentKind>> RunCalibration(
    const RunContext& context, const StreamContext::Options& options,
    int times) {
  RegionAllocator& allocator = context.memory->allocator();
  if (context.watch != nullptr) {
    context.watch->BeginCalibration(options.stream.model.layers,
                                    options.stream.layout.chunks());
  }
  allocator.RecordSegments(true);
  const absl::Status status = RunSteps(context, options, times);
  const absl::Status drained = options.copies->Drain();
  allocator.RecordSegments(false);
  SLUICE_RETURN_IF_ERROR(drained);
  SLUICE_RETURN_IF_ERROR(status);
  context.weights->ZeroGradients();
  std::vector<plan::SegmentKind> kinds = allocator.TakeRecorded();
  SLUICE_RETURN_IF_ERROR(allocator.times_fault());
  return kinds;
}

namespace {

// The first run of a size warms up caches and the host region's pages.
constexpr int kTimes = 2;

class Chooser {
 public:
  Chooser(const RunContext& context, const stream::SettingsQuestion& question,
          int threads)
      : context_(context), threads_(threads), question_(question) {}

  absl::StatusOr<ChosenSettings> Choose() {
    SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, Open()));
    const stream::ChunkRange chunks = stream::ChunksOf(question_);
    std::vector<stream::ChunkTrial> trials;
    stream::ChunkChoice choice = stream::ChooseChunk(chunks, trials);
    while (choice.next.has_value()) {
      SLUICE_ASSIGN_OR_RETURN(const double seconds, Try(*choice.next));
      trials.push_back({.rows = *choice.next, .seconds = seconds});
      choice = stream::ChooseChunk(chunks, trials);
    }
    const RatedSettings& best = *std::ranges::find(
        best_, choice.rows,
        [](const RatedSettings& rated) { return rated.settings.chunk; });
    ChosenSettings chosen{best.settings, std::isfinite(best.seconds), best_};
    if (chosen.fits) {
      chosen.settings = stream::Settled(
          best.settings, stream::StreamOf(question_, best.settings));
      SLUICE_ASSIGN_OR_RETURN(
          const std::vector<double> most,
          WorstOfRanks(context_.collectives,
                       {static_cast<double>(chosen.settings.rerun_chunks)}));
      chosen.settings.rerun_chunks = static_cast<int64_t>(most[0]);
      return chosen;
    }
    SLUICE_ASSIGN_OR_RETURN(
        const double chunk,
        LeastOfRanks(context_.collectives,
                     static_cast<double>(LargestOfRings())));
    chosen.settings = LeastOf(static_cast<int64_t>(chunk));
    return chosen;
  }

 private:
  absl::Status Open() {
    SLUICE_ASSIGN_OR_RETURN(copies_,
                            context_.memory->StartCopies(/*timeline=*/true));
    RankMemory& memory = *context_.memory;
    const client::NodeLimits limits = memory.session().limits();
    links_ = {limits.h2d_bytes_per_second, limits.d2h_bytes_per_second};
    // Per token 17 bytes: ids and labels (allocated before the plan) and a mask
    // of labels. 64 KiB for scalars.
    const int64_t ranks = question_.stream.layout.ranks();
    const Bytes text(17 * ((question_.seq_len - 1) / ranks + 1));
    const Bytes used = memory.allocator().stats().used;
    question_.hbm = std::max(Bytes(0), memory.size() - used - text - KiB(64));
    question_.host = memory.host_room();
    return absl::OkStatus();
  }

  // Returns a calibration with chunks of this size, with nothing dropped: a
  // step that runs every kind of segment.
  stream::StreamOptions ProbeOf(int64_t chunk) const {
    stream::StreamOptions probe = question_.stream;
    probe.layout = stream::ChunkLayout(question_.seq_len, chunk,
                                       question_.stream.layout.ranks());
    probe.alpha = 1;
    probe.fractions.clear();
    return stream::CalibrationStep(std::move(probe));
  }

  // Returns whether the calibration fits on every rank. Call it first, because
  // a rank that runs out of memory in a calibration is out of step.
  absl::StatusOr<bool> FitsEverywhere(const stream::StreamOptions& probe) {
    const Bytes needed = stream::HostBytes(probe);
    bool fits = RingsFit(probe) && needed <= question_.host;
    if (fits && (host_ == nullptr || host_->size() < needed)) {
      host_.reset();
      auto leased = context_.memory->LeaseHost(needed);
      fits = leased.ok();
      if (fits) host_ = *std::move(leased);
    }
    return AllAgree(context_.collectives, fits);
  }

  // Returns the least predicted seconds of a step with chunks of this size.
  absl::StatusOr<double> Try(int64_t chunk) {
    const stream::StreamOptions probe = ProbeOf(chunk);
    std::vector<plan::SegmentKind> recorded;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, FitsEverywhere(probe));
    if (fits) {
      auto options = ContextOptions(context_, probe, copies_.get());
      options.host = host_->data();
      options.host_size = host_->size();
      SLUICE_ASSIGN_OR_RETURN(recorded,
                              RunCalibration(context_, options, kTimes));
      MeasureLinks();
    }
    const auto all = stream::SettingsOf(question_, chunk);
    std::vector<double> seconds;
    for (const stream::Settings& settings : all) {
      seconds.push_back(
          stream::PredictSeconds(question_, settings, recorded, links_));
    }
    SLUICE_ASSIGN_OR_RETURN(
        seconds, WorstOfRanks(context_.collectives, std::move(seconds)));
    const auto least = std::ranges::min_element(seconds);
    best_.push_back({all[least - seconds.begin()], *least});
    return *least;
  }

  // Raises the link speeds to those measured. The daemon states a GPU's share
  // while all GPUs behind its link copy; a calibration, on all ranks of this
  // run, measures the present speed.
  void MeasureLinks() {
    double bytes[2] = {}, seconds[2] = {};
    for (const client::CopyRecord& copy : copies_->TakeTimeline()) {
      const bool out = copy.direction == device::CopyDirection::kDeviceToHost;
      bytes[out] += static_cast<double>(copy.size.count());
      seconds[out] += copy.finished_s - copy.started_s;
    }
    for (const bool out : {false, true}) {
      double& known = out ? links_.d2h : links_.h2d;
      if (seconds[out] > 0) known = std::max(known, bytes[out] / seconds[out]);
    }
  }

  // Returns the settings that need the least memory: the smallest rings, and
  // all chunks run again for the least host memory.
  stream::Settings LeastOf(int64_t chunk) const {
    return stream::LeastHost(
        question_,
        {.chunk = chunk,
         .prefetch = question_.prefetch.value_or(1),
         .order = question_.order.value_or(stream::BackwardOrder::kKeysOuter)});
  }

  bool RingsFit(const stream::StreamOptions& options) const {
    return stream::RingBytes(options) +
               stream::TransientBytes(options, {.threads = threads_}) <=
           question_.hbm;
  }

  // Returns the largest tried chunk with rings that fit, else the smallest one.
  int64_t LargestOfRings() const {
    int64_t largest = 0, smallest = std::numeric_limits<int64_t>::max();
    for (const RatedSettings& tried : best_) {
      const int64_t chunk = tried.settings.chunk;
      smallest = std::min(smallest, chunk);
      if (RingsFit(stream::StreamOf(question_, LeastOf(chunk)))) {
        largest = std::max(largest, chunk);
      }
    }
    return largest > 0 ? largest : smallest;
  }

  const RunContext& context_;
  const int threads_;  // of ATen
  std::unique_ptr<client::CopyEngine> copies_;
  std::unique_ptr<client::Region> host_;
  stream::SettingsQuestion question_;
  stream::LinkSpeeds links_;
  std::vector<RatedSettings> best_;  // per tried chunk size
};

}  // namespace

absl::StatusOr<ChosenSettings> ChooseSettings(
    const RunContext& context, const stream::SettingsQuestion& question,
    int threads) {
  return Chooser(context, question, threads).Choose();
}

}  // namespace sluice::runtime
