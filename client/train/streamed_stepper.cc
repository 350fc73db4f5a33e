// The sluice method: calibrate, plan, lease the host region, stream.
#include "client/train/streamed_stepper.h"

#include <ATen/ops/min.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/train/outcome.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// The daemon has a limit of its own, and may hold a plan back until running
// jobs have given up memory; where it is gone, the session says so.
constexpr absl::Duration kPlanTimeout = absl::Minutes(10);

}  // namespace

StreamedStepper::~StreamedStepper() {
  stream_.reset();
  if (copies_ != nullptr) copies_->Drain().IgnoreError();
}

StreamContext::Options StreamedStepper::StreamOptions(
    const runtime::ChunkLayout& layout, double alpha) const {
  StreamContext::Options o;
  o.model = context_.options->model;
  o.layout = layout;
  o.rank = context_.environment->rank;
  o.dtype = context_.weights->flat().scalar_type();
  o.stream.alpha = alpha;
  o.stream.prefetch_depth = context_.options->prefetch;
  o.collectives = context_.collectives;
  o.copies = copies_.get();
  o.allocator = &context_.memory->allocator();
  return o;
}

// --host binds all local ranks together, so each its share.
absl::StatusOr<std::unique_ptr<client::Region>> StreamedStepper::LeaseHost(
    Bytes size) {
  const Bytes limit = context_.options->host;
  const Bytes share = limit / context_.environment->local_world_size;
  if (limit.count() > 0 && size > share) {
    return DoesNotFit(
        kHostMemory,
        fmt::format("{} of host memory needed, this rank's share of --host {} "
                    "is {}: raise --host or shorten --seq-len",
                    FormatBytes(size), FormatBytes(limit), FormatBytes(share)));
  }
  auto region = context_.memory->session().LeaseHost(size);
  if (region.status().code() == absl::StatusCode::kResourceExhausted) {
    return DoesNotFit(kHostMemory, region.status());
  }
  return region;
}

namespace {

// Calibrations with different alphas lease the same size. A freed extent is
// only leased again whole while this process lives, so another odd size would
// cost the node host memory that the plan has just given away.
Bytes CalibrationBytes(StreamContext::Options options) {
  Bytes most = StreamContext::HostBytes(options);
  for (const double alpha : {0.0, 1.0}) {
    options.stream.alpha = alpha;
    most = std::max(most, StreamContext::HostBytes(options));
  }
  return most;
}

}  // namespace

// One forward and backward over two full chunks and the tail: every segment
// kind runs, with the real code; its gradients are thrown away.
absl::StatusOr<std::vector<plan::SegmentKind>> StreamedStepper::Calibrate(
    double alpha) {
  StreamContext::Options options =
      StreamOptions(StreamContext::CalibrationLayout(layout_), alpha);
  // While a run goes on, in the memory it has.
  std::unique_ptr<client::Region> leased;
  const Bytes needed = CalibrationBytes(options);
  absl::Status status;
  if (host_ == nullptr || host_->size() < needed) {
    auto region = LeaseHost(needed);
    status = region.status();
    if (region.ok()) leased = *std::move(region);
  }
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, status));
  const client::Region& host = leased != nullptr ? *leased : *host_;
  options.host = host.data();
  options.host_size = host.size();
  runtime::RegionAllocator& allocator = context_.memory->allocator();
  allocator.RecordSegments(true);
  status = Rehearse(options);
  out_of_step_ = !status.ok() && context_.collectives != nullptr;
  const absl::Status drained = copies_->Drain();
  allocator.RecordSegments(false);
  SLUICE_RETURN_IF_ERROR(drained);
  SLUICE_RETURN_IF_ERROR(status);
  context_.gradients->flat().zero_();
  return allocator.TakeRecorded();
}

absl::Status StreamedStepper::Rehearse(const StreamContext::Options& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto stream, StreamContext::Create(options));
  const int64_t rows = options.layout.total_local_rows(options.rank);
  const at::Tensor tokens = at::zeros({rows}, at::kLong);
  return ClassifyStepError(
      runtime::StreamedStep(*stream, context_.weights->tensors(),
                            context_.gradients->tensors(), tokens, tokens,
                            options.layout.seq_len())
          .status());
}

plan::RankProfile StreamedStepper::Profile(
    const std::vector<plan::SegmentKind>& recorded, double alpha,
    double asked) const {
  const StreamContext::Options options = StreamOptions(layout_, alpha);
  plan::RankProfile profile = StreamContext::Profile(options, recorded);
  profile.rank = Rank(static_cast<uint64_t>(context_.environment->rank));
  profile.gpu = context_.memory->gpu();
  profile.numa = context_.memory->session().limits().numa;
  // What states and rings leave: ids and labels are there already.
  const Bytes used = context_.memory->allocator().stats().used;
  const Bytes left =
      context_.memory->size() - used - StreamContext::RingBytes(options);
  profile.transient_capacity = Bytes(std::max<int64_t>(left.count(), 0));
  profile.alpha = asked;
  return profile;
}

absl::Status StreamedStepper::PlanWith(double alpha, double asked) {
  SLUICE_ASSIGN_OR_RETURN(const auto recorded, Calibrate(alpha));
  saved_.profile = Profile(recorded, alpha, asked);
  auto plan = context_.memory->session().Plan(saved_.profile, kPlanTimeout);
  SLUICE_RETURN_IF_ERROR(ClassifyStepError(plan.status()));
  if (!plan->infeasible.empty()) {
    return DoesNotFit(plan->limited_by, plan->infeasible);
  }
  saved_.plan = *std::move(plan);
  alpha_ = OwnPlan()->alpha;
  return absl::OkStatus();
}

// Of all ranks of the run, those of other nodes included.
absl::StatusOr<double> StreamedStepper::LeastAlpha(double own) const {
  runtime::Collectives* const all = context_.collectives;
  if (all == nullptr) return own;
  const runtime::HostScope host("alphas of the ranks");
  at::Tensor alphas = at::zeros({all->world_size()}, at::kDouble);
  alphas.data_ptr<double>()[all->rank()] = own;
  SLUICE_RETURN_IF_ERROR(ClassifyStepError(all->SumAll(alphas)));
  return at::min(alphas).item<double>();
}

// A rank stores the k and v of its heads for the rows of all ranks: how many
// stay is one number for the run. A plan may give a rank on a less busy link
// more than another, so the least counts, which fits everywhere.
//
// A segment's requests depend on alpha, and alpha on what was recorded: where
// another alpha comes out than was recorded with, record again with it. All
// ranks do, for the daemon plans them together.
absl::Status StreamedStepper::MakePlan() {
  const double asked = context_.options->alpha;
  const double first = asked >= 0 ? asked : 1.0;
  SLUICE_RETURN_IF_ERROR(PlanWith(first, asked));
  SLUICE_ASSIGN_OR_RETURN(const double chosen, LeastAlpha(alpha_));
  if (std::abs(chosen - first) < 1e-9) return absl::OkStatus();
  return PlanWith(chosen, chosen);
}

absl::Status StreamedStepper::CheckAlphas() const {
  SLUICE_ASSIGN_OR_RETURN(const double least, LeastAlpha(alpha_));
  if (alpha_ == least) return absl::OkStatus();
  return absl::InternalError(fmt::format(
      "this rank's plan has alpha {}, another's {}: they must be one", alpha_,
      least));
}

const plan::RankPlan* StreamedStepper::OwnPlan() const {
  for (const plan::RankPlan& part : saved_.plan.ranks) {
    if (part.rank == saved_.profile.rank) return &part;
  }
  return nullptr;
}

absl::Status StreamedStepper::AdoptPlan() {
  const plan::RankPlan* own = OwnPlan();
  if (own == nullptr) return BadInput("the plan has no part for this rank");
  alpha_ = own->alpha;
  const absl::Status set = context_.memory->allocator().SetPlan(
      own->segments, saved_.profile.segments, own->transient_peak);
  return ClassifyStepError(set);
}

absl::Status StreamedStepper::Start() {
  StreamContext::Options options = StreamOptions(layout_, alpha_);
  options.stream.probe = context_.options->probe;
  if (host_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(host_,
                            LeaseHost(StreamContext::HostBytes(options)));
  }
  options.host = host_->data();
  options.host_size = host_->size();
  auto stream = StreamContext::Create(options);
  SLUICE_RETURN_IF_ERROR(ClassifyStepError(stream.status()));
  stream_ = *std::move(stream);
  return absl::OkStatus();
}

absl::Status StreamedStepper::Prepare(const SavedPlan* saved) {
  client::CopyEngine::Options copies;
  copies.driver = &context_.memory->session().driver();
  copies.device = context_.memory->session().limits().device;
  copies.gate = &context_.memory->session().grants();
  copies.record_timeline =
      !context_.options->trace.empty() && context_.environment->rank == 0;
  SLUICE_ASSIGN_OR_RETURN(copies_, client::CopyEngine::Start(copies));
  if (saved != nullptr) {
    saved_ = *saved;
  } else {
    SLUICE_RETURN_IF_ERROR(MakePlan());
  }
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, AdoptPlan()));
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, CheckAlphas()));
  return Agree(context_.collectives, Start());
}

PlanSummary StreamedStepper::plan() const {
  PlanSummary summary;
  const plan::RankPlan* own = OwnPlan();
  if (own == nullptr) return summary;
  summary.peak = own->transient_peak;
  bool all = true;
  for (const plan::SegmentPlan& segment : own->segments) {
    summary.lower_bound =
        std::max(summary.lower_bound, segment.placement.lower_bound);
    all = all && segment.placement.optimal();
    if (summary.proved_by.empty()) {
      summary.proved_by = segment.placement.proved_by;
    }
  }
  if (!all || summary.peak != summary.lower_bound) summary.proved_by = "none";
  summary.mismatches = context_.memory->allocator().stats().mismatches;
  return summary;
}

absl::StatusOr<std::unique_ptr<Stepper>> MakeStreamedStepper(
    const StepperContext& context, const SavedPlan* saved) {
  auto stepper = std::make_unique<StreamedStepper>(context);
  SLUICE_RETURN_IF_ERROR(stepper->Prepare(saved));
  return stepper;
}

}  // namespace sluice::train
