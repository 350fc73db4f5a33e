// Taking a new plan between two steps of a running job.
//
// The stream is made anew with the new fractions: record with them, in the
// host memory the rank has; have memory planned (a settled question); only
// then give the old host lease back and lease what the plan says. Weights,
// gradients and the optimizer are not touched. A saved plan that has become too
// large is left in the same way.
#include <fmt/format.h>

#include "absl/time/clock.h"
#include "client/torch/run/agreement.h"
#include "client/torch/run/streamed_stepper.h"
#include "planner/stream/loss_rows.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/plan/validate.h"

namespace sluice::runtime {
namespace {

// Others give back what this rank is to get a little later, so a lease is
// asked for several times. Counted, not timed: all ranks must do the same.
constexpr int kLeaseTries = 12;
constexpr absl::Duration kLeasePause = absl::Milliseconds(250);
// Where even the old memory is gone, it waits for memory about so often.
constexpr int kRounds = 40;

}  // namespace

uint64_t StreamedStepper::OfferedPlan() {
  offered_ = context_.memory->session().ChangedPlan();
  return offered_ != nullptr ? offered_->id.value() : 0;
}

absl::StatusOr<bool> StreamedStepper::AllFine(const absl::Status& own) {
  if (out_of_step_) return own;
  if (!own.ok()) why_ = std::string(own.message());
  return AllAgree(context_.collectives, own.ok());
}

// Whether it can record with them, as far as that is known before: transient
// buffers are taken to be as large as they were.
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

// Records and plans with them; the stream is gone, the host lease stays.
absl::StatusOr<bool> StreamedStepper::TakeFractions(
    const stream::FractionMap& chosen, const SavedPlan& before) {
  // Back to pool, so that every segment is recorded.
  absl::Status status = context_.memory->allocator().SetPlan({}, {}, Bytes(0));
  // A rank that runs out of memory while it records is out of step.
  if (status.ok()) status = CheckRoom(chosen, before);
  SLUICE_ASSIGN_OR_RETURN(const bool ready, AllFine(status));
  if (!ready) return false;
  SLUICE_ASSIGN_OR_RETURN(const bool planned, AllFine(Settle(chosen)));
  if (!planned) return false;
  return AllFine(AdoptPlan());
}

// The host region, then the stream. `release`: first gives back what it has.
absl::StatusOr<bool> StreamedStepper::Restart(bool release) {
  stream_.reset();
  if (release) host_.reset();
  for (int attempt = 0; attempt < kLeaseTries; ++attempt) {
    if (attempt > 0) absl::SleepFor(kLeasePause);
    const absl::Status status = stream_ != nullptr ? absl::OkStatus() : Start();
    SLUICE_ASSIGN_OR_RETURN(const bool all, AllFine(status));
    if (all) return true;
  }
  stream_.reset();
  if (release) host_.reset();
  return false;
}

// Runs by a plan that was saved, where every rank has the memory for it. Else
// it is forgotten, on all ranks: what it chose belongs to a larger machine.
absl::StatusOr<bool> StreamedStepper::Replay(const SavedPlan& saved) {
  saved_ = saved;
  SLUICE_ASSIGN_OR_RETURN(bool fine, AllFine(AdoptPlan()));
  if (fine) {
    SLUICE_ASSIGN_OR_RETURN(fine, AllFine(CheckShared()));
  }
  if (fine) {
    SLUICE_ASSIGN_OR_RETURN(fine, AllFine(Start()));
  }
  if (fine) return true;
  note_ = fmt::format("the saved plan does not fit here ({}): planned anew",
                      why_.empty() ? "another rank refused it" : why_);
  why_.clear();
  stream_.reset();
  host_.reset();
  saved_ = {};
  SLUICE_ASSIGN_OR_RETURN(
      fine, AllFine(context_.memory->allocator().SetPlan({}, {}, Bytes(0))));
  if (fine) return false;
  return absl::InternalError("a saved plan cannot be undone: " + why_);
}

// By fractions that the daemon has room for by now.
absl::StatusOr<bool> StreamedStepper::PlanAnew() {
  const absl::Status cleared =
      context_.memory->allocator().SetPlan({}, {}, Bytes(0));
  SLUICE_ASSIGN_OR_RETURN(bool all, AllFine(cleared));
  if (!all) return false;
  SLUICE_ASSIGN_OR_RETURN(all, AllFine(MakePlan()));
  if (!all) return false;
  SLUICE_ASSIGN_OR_RETURN(all, AllFine(AdoptPlan()));
  return all ? Restart(/*release=*/true) : absl::StatusOr<bool>(false);
}

// With what it ran by before, or with what fits now: true where it is the
// former. Needs no calibration: plan and recording are kept.
absl::StatusOr<bool> StreamedStepper::GoBack(const SavedPlan& before) {
  for (int round = 0; round < kRounds; ++round) {
    saved_ = before;
    SLUICE_ASSIGN_OR_RETURN(const bool adopted, AllFine(AdoptPlan()));
    if (adopted) {
      // It may still have the memory it had.
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
