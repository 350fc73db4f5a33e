// The sluice method: calibrate, plan, lease the host region, stream.
#include "client/torch/run/streamed_stepper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/clock.h"
#include "client/torch/run/agreement.h"
#include "client/torch/run/choose_settings.h"
#include "planner/stream/loss_rows.h"
#include "planner/stream/profile.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/peer_fault.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/plan/validate.h"

namespace sluice::runtime {
namespace {

// Ends the wait for a plan as a last resort. The daemon has its own limit, and
// may delay a plan until running jobs have released memory. If the daemon is
// gone, the session reports that.
constexpr absl::Duration kPlanTimeout = absl::Minutes(10);

// Returns an upper bound of the host memory over all choices of fractions.
Bytes MostBytes(stream::StreamOptions options) {
  Bytes most = stream::HostBytes(options);
  options.fractions.clear();
  for (const double alpha : {0.0, 1.0}) {
    options.alpha = alpha;
    most = std::max(most, stream::HostBytes(options));
  }
  return most;
}

// Other ranks may release the memory for this rank only after a moment. Tries
// are counted, not timed, because all ranks must make equally many.
constexpr int kLeaseTries = 12;
constexpr absl::Duration kLeasePause = absl::Milliseconds(250);
// Limits how often GoBack tries the old plan and then a new one.
constexpr int kRounds = 40;

}  // namespace

StreamedStepper::~StreamedStepper() {
  stream_.reset();
  if (copies_ != nullptr) copies_->Drain().IgnoreError();
}

StreamedStepper::StreamedStepper(const RunContext& context,
                                 const Options& options)
    : context_(context), options_(options) {}

StreamContext::Options StreamedStepper::StreamOptions(
    const stream::FractionMap& fractions) const {
  stream::StreamOptions stream = options_.stream;
  stream.alpha = 1;  // each class has fractions
  stream.fractions = fractions;
  stream.probe = false;
  return ContextOptions(context_, stream, copies_.get());
}

// Leases the same size for all fractions if there is room: while this process
// lives, a freed extent is reused only as a whole, so a second size would take
// more of the node's host memory, which the plan has just given to other ranks.
// If room is tight, spare_ holds the lease until the run has its own, so that
// the plan may count on it. Returns null if host_ or spare_ is large enough.
absl::StatusOr<std::unique_ptr<client::Region>>
StreamedStepper::LeaseForCalibration(const stream::StreamOptions& options) {
  const Bytes needed = stream::HostBytes(options);
  if (needed == Bytes(0)) return nullptr;
  for (const auto* had : {&host_, &spare_}) {
    if (*had != nullptr && (*had)->size() >= needed) return nullptr;
  }
  spare_.reset();
  const Bytes most = MostBytes(options), room = context_.memory->host_room();
  if (most > room) {  // memory beyond `room` is the share of other ranks
    SLUICE_ASSIGN_OR_RETURN(spare_, context_.memory->LeaseHost(needed));
    return nullptr;
  }
  SLUICE_ASSIGN_OR_RETURN(auto region, context_.memory->LeaseHost(most));
  if (2 * most < room) return region;
  spare_ = std::move(region);
  return nullptr;
}

// Runs one layer over a short sequence that has every segment kind.
absl::StatusOr<std::vector<plan::SegmentKind>> StreamedStepper::Calibrate(
    const stream::FractionMap& fractions) {
  StreamContext::Options options = StreamOptions(fractions);
  options.stream = stream::CalibrationStep(options.stream);
  auto leased = LeaseForCalibration(options.stream);
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, leased.status()));
  const Bytes needed = stream::HostBytes(options.stream);
  const bool enough = host_ != nullptr && host_->size() >= needed;
  const client::Region* host = *leased != nullptr ? leased->get()
                               : enough           ? host_.get()
                                                  : spare_.get();
  if (needed > Bytes(0)) {
    options.host = host->data();
    options.host_size = host->size();
  }
  auto recorded = RunCalibration(context_, options, /*times=*/1);
  out_of_step_ = !recorded.ok() && context_.collectives != nullptr;
  return recorded;
}

plan::RankProfile StreamedStepper::Profile(
    const std::vector<plan::SegmentKind>& recorded, const Round& round) const {
  const stream::StreamOptions options = StreamOptions(round.fractions).stream;
  plan::RankProfile profile = stream::Profile(options, recorded);
  profile.rank = Rank(static_cast<uint64_t>(options_.stream.rank));
  profile.gpu = context_.memory->gpu();
  profile.numa = context_.memory->session().limits().numa;
  // A plan states what the rank takes of the node. It includes the host memory
  // held besides the step, which the daemon else would promise to other ranks.
  const Bytes fixed = context_.memory->fixed_host();
  profile.host_fixed += fixed;
  profile.host_limit = context_.memory->host_limit();
  if (profile.host_limit.has_value()) *profile.host_limit += fixed;
  Ask(round, &profile);
  const Bytes used = context_.memory->allocator().stats().used;
  const Bytes kept = stream::KeptBytes(options);
  // The mask of labels, and the scalars that live between segments.
  const Bytes outside =
      Bytes(layout().total_local_rows(options_.stream.rank)) + KiB(64);
  // The HBM that states, ids, labels and rings leave free.
  Bytes left = context_.memory->size() - used - stream::RingBytes(options);
  if (round.settled && kept > Bytes(0)) left -= kept + outside;
  // 0 would mean "not stated".
  profile.transient_capacity = Bytes(std::max<int64_t>(left.count(), 1));
  double named = 0, stored = 0;  // bytes kept and swapped, without alignment
  bool free = false, settled = true;
  for (const plan::SkeletalClass& c : profile.classes) {
    free |= !c.must_swap && !c.given.swap && profile.alpha < 0;
    settled &= c.must_swap || c.given.swap.has_value();
    const double all = static_cast<double>(plan::KindOf(profile, c).layers) *
                       static_cast<double>(c.bytes_per_layer.count());
    named += c.given.keep.value_or(0) * all;
    stored += (c.must_swap ? 1 : c.given.swap.value_or(0)) * all;
  }
  // Returns what `all` has in addition to the `told` bytes of the classes. The
  // result is exact, because the recording ran with the step's fractions.
  const auto beside = [](Bytes all, double told) {
    const double more = static_cast<double>(all.count()) - std::floor(told);
    return Bytes(static_cast<int64_t>(std::max(more, 0.0)));
  };
  if (!free) profile.keep_reserve = beside(kept, named);
  if (settled) {
    profile.host_fixed = beside(stream::HostBytes(options), stored) + fixed;
  }
  profile.keep_reserve += outside;
  return profile;
}

// Sets the fractions that the planner must not change. A settled round keeps
// the reasons that the last plan gave.
void StreamedStepper::Ask(const Round& round,
                          plan::RankProfile* profile) const {
  for (plan::SkeletalClass& c : profile->classes) {
    if (c.must_swap) continue;
    const auto own = round.given.find(c.name);
    if (own != round.given.end()) {
      c.given = {own->second.keep, own->second.swap};
    } else if (c.can_keep && !options_.may_keep) {
      c.given.keep = 0;
    }
  }
  const plan::RankPlan* last = saved_.own();
  if (!round.settled || last == nullptr) {
    profile->alpha = options_.stream.alpha;
    return;
  }
  profile->settled = true;
  profile->limited_by = last->alpha_limited_by;
  for (plan::SkeletalClass& c : profile->classes) {
    for (const plan::ClassPlan& planned : last->classes) {
      if (planned.name != c.name || !c.given.all()) continue;
      c.why = planned.fractions.swap == *c.given.swap &&
                      planned.fractions.keep == *c.given.keep
                  ? planned.why
                  : fmt::format(
                        "{} swapped, {} kept: less than planned, because "
                        "another rank or transient buffers need it",
                        *c.given.swap, *c.given.keep);
    }
  }
}

absl::Status StreamedStepper::PlanWith(const Round& round) {
  SLUICE_ASSIGN_OR_RETURN(const auto recorded, Calibrate(round.fractions));
  plan::RankProfile profile = Profile(recorded, round);
  if (context_.watch != nullptr) context_.watch->BeginPlanning();
  auto plan = context_.memory->session().Plan(profile, kPlanTimeout);
  if (context_.watch != nullptr) context_.watch->EndPlanning();
  SLUICE_RETURN_IF_ERROR(plan.status());
  if (!plan->infeasible.empty()) {
    return Advised(
        ShortOf(ShortageNamed(plan->limited_by).value_or(Shortage::kNone),
                plan->infeasible));
  }
  saved_ = {std::move(profile), *std::move(plan)};
  return absl::OkStatus();
}

// Returns whether an estimate chose to keep all and no later plan kept less.
bool StreamedStepper::MayKeepEverything() const {
  const plan::RankPlan* own = saved_.own();
  const auto keeps = [](const plan::ClassPlan& c) {
    return c.fractions.keep == 1;
  };
  return options_.keep_everything &&
         (own == nullptr || std::ranges::all_of(own->classes, keeps));
}

stream::FractionMap StreamedStepper::Given(bool everything) const {
  return everything ? stream::KeepEverything(options_.stream.model)
                    : options_.stream.fractions;
}

// Returns the user's fractions, or those that keep everything. If the planner
// chooses, all ranks begin with the largest alpha with which the calibration
// fits in host memory.
absl::StatusOr<StreamedStepper::Round> StreamedStepper::FirstRound(
    bool everything) const {
  const stream::FractionMap given = Given(everything);
  const auto filled = [&](double alpha) {
    return stream::FillFractions(options_.stream.model, given, alpha);
  };
  const double asked = options_.stream.alpha;
  if (asked >= 0 || everything) return Round{filled(asked), given};
  double most = 1;
  for (; most > 0; most -= 0.25) {
    const Bytes needed = stream::HostBytes(
        stream::CalibrationStep(StreamOptions(filled(most)).stream));
    if (needed <= context_.memory->host_room()) break;
  }
  SLUICE_ASSIGN_OR_RETURN(most, LeastOfRanks(context_.collectives, most));
  return Round{filled(most), given};
}

// Returns the plan's fractions for classes that it chooses, else those given
// before (scratch classes, and classes that must be kept or swapped).
stream::FractionMap StreamedStepper::PlannedFractions() const {
  const plan::RankPlan* own = saved_.own();
  if (own == nullptr) return {};
  stream::FractionMap fractions = stream::FillFractions(
      options_.stream.model, Given(MayKeepEverything()), /*alpha=*/1);
  for (const plan::ClassPlan& c : own->classes) {
    const stream::ClassTraits* known = stream::FindClass(c.name);
    if (known == nullptr || !known->free()) continue;
    fractions[c.name] = {c.fractions.keep, c.fractions.swap};
  }
  return fractions;
}

// Returns the planned fractions, with one value on all ranks for q, k and v,
// because a rank stores those of its heads for the rows of all ranks. Plans of
// several nodes may differ; the smallest fraction fits everywhere.
absl::StatusOr<stream::FractionMap> StreamedStepper::AgreedFractions() const {
  stream::FractionMap fractions = PlannedFractions();
  for (auto& [name, f] : fractions) {
    if (!stream::FindClass(name)->shared()) continue;
    SLUICE_ASSIGN_OR_RETURN(f.swap, LeastOfRanks(context_.collectives, f.swap));
  }
  return fractions;
}

absl::Status StreamedStepper::MakePlan() {
  const bool everything = MayKeepEverything();
  SLUICE_ASSIGN_OR_RETURN(Round round, FirstRound(everything));
  SLUICE_ASSIGN_OR_RETURN(bool fits, PlanOnAll(round));
  if (!fits && everything) {
    why_.clear();
    SLUICE_ASSIGN_OR_RETURN(round, FirstRound(/*everything=*/false));
    SLUICE_ASSIGN_OR_RETURN(fits, PlanOnAll(round));
  }
  if (!fits) return GpuTooSmall();
  SLUICE_ASSIGN_OR_RETURN(const stream::FractionMap chosen, AgreedFractions());
  SLUICE_ASSIGN_OR_RETURN(const bool other, AnyRank(context_.collectives,
                                                    chosen != round.fractions));
  return other ? Settle(chosen) : absl::OkStatus();
}

// Records and plans again with the fractions of the first plan, on all ranks.
// Needed if any rank's plan differs from its recording: a segment's requests
// depend on the fractions, and the daemon plans all ranks together. If the kept
// rows then leave too little room for rings and transient buffers, only rows
// that the options keep are kept.
absl::Status StreamedStepper::Settle(const stream::FractionMap& chosen) {
  SLUICE_ASSIGN_OR_RETURN(bool fits,
                          PlanOnAll({chosen, chosen, /*settled=*/true}));
  if (fits) return absl::OkStatus();
  const stream::FractionMap less =
      stream::WithoutKept(chosen, options_.stream.fractions);
  SLUICE_ASSIGN_OR_RETURN(fits, PlanOnAll({less, less, /*settled=*/true}));
  return fits ? absl::OkStatus() : GpuTooSmall();
}

// Returns false on all ranks if any GPU is too small for its transient buffers.
absl::StatusOr<bool> StreamedStepper::PlanOnAll(const Round& round) {
  const absl::Status planned = PlanWith(round);
  if (out_of_step_) return planned;
  const bool full = ShortageOf(planned) == Shortage::kGpuMemory;
  full_ = full ? planned : absl::OkStatus();
  if (full) why_ = std::string(planned.message());
  SLUICE_RETURN_IF_ERROR(
      Agree(context_.collectives, full ? absl::OkStatus() : planned));
  SLUICE_ASSIGN_OR_RETURN(const bool any, AnyRank(context_.collectives, full));
  return !any;
}

absl::Status StreamedStepper::GpuTooSmall() const {
  if (!full_.ok()) return full_;
  return CausedByPeer(
      absl::AbortedError("another rank's transient buffers do not fit"));
}

absl::Status StreamedStepper::CheckShared() const {
  SLUICE_ASSIGN_OR_RETURN(const stream::FractionMap agreed, AgreedFractions());
  if (agreed == PlannedFractions()) return absl::OkStatus();
  return absl::InternalError(
      "this rank's plan swaps more of q, k or v than another's: it must be as "
      "much");
}

double StreamedStepper::alpha() const {
  const plan::RankPlan* own = saved_.own();
  return own != nullptr ? own->alpha : 1;
}

absl::Status StreamedStepper::AdoptPlan() {
  const plan::RankPlan* own = saved_.own();
  if (own == nullptr) {
    return absl::InvalidArgumentError("the plan has no part for this rank");
  }
  return context_.memory->allocator().SetPlan(
      own->segments, saved_.profile.segments, own->transient_peak);
}

absl::Status StreamedStepper::Start() {
  StreamContext::Options options = StreamOptions(PlannedFractions());
  options.stream.probe = options_.stream.probe;
  const Bytes needed = stream::HostBytes(options.stream);
  if (host_ == nullptr && spare_ != nullptr && spare_->size() >= needed) {
    host_ = std::move(spare_);
  }
  spare_.reset();
  if (needed > Bytes(0)) {
    if (host_ == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(host_, context_.memory->LeaseHost(needed));
    }
    options.host = host_->data();
    options.host_size = host_->size();
  }
  std::vector<client::CopySlack> slack;
  for (const stream::CopyDue& each :
       stream::CopiesDue(options.stream, saved_.profile.segments)) {
    slack.push_back({each.label, absl::Seconds(each.slack_seconds)});
  }
  copies_->KnowSlack(std::move(slack));
  SLUICE_ASSIGN_OR_RETURN(stream_, StreamContext::Create(options));
  return absl::OkStatus();
}

absl::Status StreamedStepper::Prepare(const SavedPlan* saved) {
  SLUICE_ASSIGN_OR_RETURN(copies_,
                          context_.memory->StartCopies(options_.record_copies));
  if (saved != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const bool runs, Replay(*saved));
    if (runs) return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(MakePlan());
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, AdoptPlan()));
  SLUICE_RETURN_IF_ERROR(Agree(context_.collectives, CheckShared()));
  return Agree(context_.collectives, Start());
}

std::string StreamedStepper::note() const {
  if (!options_.keep_everything || MayKeepEverything()) return note_;
  return fmt::format(
      "{}{}not everything fits on the GPU after all: some of it moves", note_,
      note_.empty() ? "" : "; ");
}

PlanSummary StreamedStepper::plan() const {
  PlanSummary summary;
  const plan::RankPlan* own = saved_.own();
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

absl::StatusOr<std::unique_ptr<StreamedStepper>> StreamedStepper::Make(
    const RunContext& context, const Options& options, const SavedPlan* saved) {
  std::unique_ptr<StreamedStepper> stepper(
      new StreamedStepper(context, options));
  SLUICE_RETURN_IF_ERROR(stepper->Prepare(saved));
  return stepper;
}

// --- a new plan between two steps of a running job
//
// The stream is rebuilt with the new fractions. The rank records with them, in
// the host memory that it has, and asks for a plan in which all fractions are
// given (Round::settled). Only then does it free the old host lease and lease
// what the plan says. Weights, gradients and the optimizer are not touched. A
// saved plan that has become too large is replaced in the same way.

uint64_t StreamedStepper::OfferedPlan() {
  offered_ = context_.memory->session().ChangedPlan();
  return offered_ != nullptr ? offered_->id.value() : 0;
}

absl::StatusOr<bool> StreamedStepper::AllFine(
    std::initializer_list<std::function<absl::Status()>> steps) {
  for (const auto& step : steps) {
    const absl::Status own = step();
    if (out_of_step_) return own;
    if (!own.ok()) why_ = std::string(own.message());
    SLUICE_ASSIGN_OR_RETURN(const bool all,
                            AllAgree(context_.collectives, own.ok()));
    if (!all) return false;
  }
  return true;
}

// Checks the room, assuming that transient buffers are as large as before.
absl::Status StreamedStepper::CheckRoom(const stream::FractionMap& chosen,
                                        const SavedPlan& before) const {
  const plan::RankPlan* own = plan::PartOf(before.plan, before.profile);
  const stream::StreamOptions options =
      stream::CalibrationStep(StreamOptions(chosen).stream);
  return RoomToRecord(
      {.lease = context_.memory->size(),
       .used = context_.memory->allocator().stats().used,
       .rings = stream::RingBytes(options),
       .kept = stream::KeptBytes(options),
       .transient = own != nullptr ? own->transient_peak : Bytes(0)});
}

// Records with these fractions, plans, and adopts the plan. REQUIRES: the
// stream is destroyed; the host lease stays.
absl::StatusOr<bool> StreamedStepper::TakeFractions(
    const stream::FractionMap& chosen, const SavedPlan& before) {
  // A rank that runs out of HBM in a calibration would be out of step.
  const auto ready = [&] {
    const absl::Status cleared = ClearPlan();
    return cleared.ok() ? CheckRoom(chosen, before) : cleared;
  };
  return AllFine(
      {ready, [&] { return Settle(chosen); }, [this] { return AdoptPlan(); }});
}

// Leases the host region and makes the stream, with several tries. With
// `release` it first gives the old host lease back.
absl::StatusOr<bool> StreamedStepper::Restart(bool release) {
  stream_.reset();
  if (release) host_.reset();
  for (int attempt = 0; attempt < kLeaseTries; ++attempt) {
    if (attempt > 0) absl::SleepFor(kLeasePause);
    SLUICE_ASSIGN_OR_RETURN(const bool all, AllFine({[this] {
                              return stream_ != nullptr ? absl::OkStatus()
                                                        : Start();
                            }}));
    if (all) return true;
  }
  stream_.reset();
  if (release) host_.reset();
  return false;
}

// Adopts a saved plan if every rank has the memory for it. Otherwise all ranks
// drop it: its choices belong to a larger machine.
absl::StatusOr<bool> StreamedStepper::Replay(const SavedPlan& saved) {
  saved_ = saved;
  SLUICE_ASSIGN_OR_RETURN(bool fine, AllFine({[this] { return AdoptPlan(); },
                                              [this] { return CheckShared(); },
                                              [this] { return Start(); }}));
  if (fine) return true;
  note_ = fmt::format("the saved plan does not fit here ({}): planned anew",
                      why_.empty() ? "another rank refused it" : why_);
  why_.clear();
  stream_.reset();
  host_.reset();
  saved_ = {};
  SLUICE_ASSIGN_OR_RETURN(fine, AllFine({[this] { return ClearPlan(); }}));
  if (fine) return false;
  return absl::InternalError("a saved plan cannot be undone: " + why_);
}

// Plans with fractions that the daemon has room for now, and restarts.
absl::StatusOr<bool> StreamedStepper::PlanAnew() {
  SLUICE_ASSIGN_OR_RETURN(
      const bool all,
      AllFine({[this] { return ClearPlan(); }, [this] { return MakePlan(); },
               [this] { return AdoptPlan(); }}));
  return all ? Restart(/*release=*/true) : absl::StatusOr<bool>(false);
}

// Restarts with the previous plan, which needs no calibration, and returns
// true; or restarts with a new plan that fits now, and returns false.
absl::StatusOr<bool> StreamedStepper::GoBack(const SavedPlan& before) {
  for (int round = 0; round < kRounds; ++round) {
    saved_ = before;
    SLUICE_ASSIGN_OR_RETURN(const bool adopted,
                            AllFine({[this] { return AdoptPlan(); }}));
    if (adopted) {
      // The rank may still hold its old lease.
      SLUICE_ASSIGN_OR_RETURN(const bool old, Restart(/*release=*/false));
      if (old) return true;
    }
    SLUICE_ASSIGN_OR_RETURN(const bool anew, PlanAnew());
    if (anew) return false;
  }
  return ShortOf(Shortage::kHostMemory,
                 fmt::format("the run gave host memory back for a new plan "
                             "and cannot get any again: {}",
                             why_.empty() ? "another rank gets none" : why_));
}

absl::StatusOr<PlanChangeRecord> StreamedStepper::Refresh(bool mine) {
  const absl::Time start = absl::Now();
  const auto offered = mine ? offered_ : nullptr;
  const SavedPlan before = saved_;
  const double alpha_before = alpha();
  const stream::FractionMap fractions_before = PlannedFractions();
  const Bytes host_before = host_bytes();
  PlanChangeRecord record;
  if (offered != nullptr) {
    record.plan = offered->id.value();
    const bool ours = plan::PartOf(*offered, before.profile) != nullptr;
    if (ours) saved_.plan = *offered;
  }
  why_.clear();
  SLUICE_ASSIGN_OR_RETURN(const stream::FractionMap agreed, AgreedFractions());
  SLUICE_ASSIGN_OR_RETURN(
      const bool other,
      AnyRank(context_.collectives, agreed != fractions_before));
  record.taken = true;
  if (!other) {
    saved_ = before;
  } else {
    stream_.reset();
    SLUICE_ASSIGN_OR_RETURN(record.taken, TakeFractions(agreed, before));
    if (record.taken) {
      SLUICE_ASSIGN_OR_RETURN(record.taken, Restart(/*release=*/true));
    }
  }
  record.note = fmt::format("plan {}", record.plan);
  if (!record.taken) {
    const std::string why = why_.empty() ? "another rank refused it" : why_;
    SLUICE_ASSIGN_OR_RETURN(const bool old, GoBack(before));
    record.note += fmt::format(" not taken ({}); on with {}", why,
                               old ? "the one before" : "what fits now");
  }
  record.alpha = alpha();
  record.note += fmt::format(
      ": alpha {:.4g} -> {:.4g}, host memory {} -> {}, {:.2f} s", alpha_before,
      alpha(), FormatBytes(host_before), FormatBytes(host_bytes()),
      absl::ToDoubleSeconds(absl::Now() - start));
  if (offered != nullptr) {
    context_.memory->session()
        .AnswerChange(offered->id, record.taken, record.note)
        .IgnoreError();
  }
  return record;
}

}  // namespace sluice::runtime
