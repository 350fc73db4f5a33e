// The training loop of one rank.
//
// A step is batch x accumulate sequences, one after the other, because batching
// the rows of several streamed sequences would gain nothing. The gradients of
// all sequences add up, divided by the number of all their labels. The update
// may end in the next step's forward (adamw.h); a save, a new plan and the
// run's end wait for it. Every decision that all ranks must share (stop on NaN,
// stop on Ctrl-C) is made from sums that all of them have.
#include <ATen/Context.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "client/torch/placement.h"
#include "client/train/announce.h"
#include "client/train/checkpoint/checkpoint.h"
#include "client/train/data/corpus.h"
#include "client/train/launch/outcome.h"
#include "client/train/optimizer/adamw.h"
#include "client/train/rank.h"
#include "client/train/step/stepper.h"
#include "client/train/watch/rank_page.h"
#include "proto/base/peer_fault.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

AdamWOptions OptimizerOptions(const RunOptions& o) {
  return {.lr = o.lr,
          .warmup = o.warmup,
          .clip = o.clip,
          .weight_decay = o.weight_decay,
          .beta1 = o.beta1,
          .beta2 = o.beta2};
}

class Trainer {
 public:
  Trainer(const StepperContext& context, RunReport* report)
      : context_(context),
        report_(report),
        state_{.ranks = context.environment->world_size} {}

  absl::Status Run() {
    absl::Status status = Prepare();
    if (status.ok()) status = context_.options->probe ? Probe() : Loop();
    FinishReport();
    return status;
  }

 private:
  struct Sums {
    double loss = 0;
    Bytes host;
    bool stop = false;
    Bytes hbm_peak;
    std::vector<bool> takes;  // by rank: whether it takes a new plan now
  };

  absl::Status PrepareData() {
    const RunOptions& o = *context_.options;
    if (o.probe) return absl::OkStatus();  // a probe needs no text
    SLUICE_ASSIGN_OR_RETURN(
        corpus_,
        Corpus::Open({o.data, o.data_suffix, o.token_bytes, o.model.vocab}));
    // Checked before anything is measured or planned for --seq-len.
    SLUICE_RETURN_IF_ERROR(CheckLength(*corpus_, o.seq_len));
    state_.identity.data_tokens = corpus_->tokens();
    SLUICE_ASSIGN_OR_RETURN(state_.identity.data, corpus_->Fingerprint());
    return absl::OkStatus();
  }

  // A run that is resumed with the same flags keeps its settings, if all ranks
  // have them.
  absl::Status Choose() {
    const RunOptions& o = *context_.options;
    if (o.method != Method::kSluice) return absl::OkStatus();
    if (o.chunk > 0 && o.rerun.has_value()) return absl::OkStatus();
    std::optional<stream::Settings> saved;
    if (resumed_.has_value()) saved = resumed_->LoadSettings(context_);
    SLUICE_ASSIGN_OR_RETURN(
        const bool all,
        runtime::AllAgree(context_.collectives, saved.has_value()));
    stream::Settings settings;
    if (all) {
      settings = *saved;
      report_->settings_why = stream::ToString(settings) + ", as before";
    } else {
      SLUICE_ASSIGN_OR_RETURN(settings,
                              ChooseSettings(context_, report_->settings_why));
    }
    chosen_ = WithSettings(o, settings);
    context_.options = &chosen_;
    return absl::OkStatus();
  }

  absl::Status PrepareStepper() {
    absl::StatusOr<runtime::SavedPlan> saved =
        absl::NotFoundError("it is a new run");
    bool replay = false;
    if (context_.options->method == Method::kSluice && resumed_.has_value()) {
      saved = resumed_->LoadPlan(context_);
      // Planning is a collective: all ranks replay saved plans, or all plan.
      SLUICE_ASSIGN_OR_RETURN(
          replay, runtime::AllAgree(context_.collectives, saved.ok()));
      if (!replay) {
        Note(
            fmt::format("the saved plan is not for this run ({}): planned anew",
                        saved.ok() ? "another rank has none"
                                   : std::string(saved.status().message())));
      }
    }
    SLUICE_ASSIGN_OR_RETURN(
        stepper_, Stepper::Make(context_, replay ? &*saved : nullptr));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HostStates>> LeaseStates() {
    const RunOptions& o = *context_.options;
    HostStates::Options states{.model = o.model,
                               .dtype = o.dtype,
                               .ranks = context_.environment->world_size,
                               .rank = context_.environment->rank,
                               .device = context_.memory->device()};
    const Bytes size = stream::CountStates(o.model, o.dtype, states.ranks,
                                           states.rank, context_.states)
                           .host;
    if (size > Bytes(0)) {  // a rank may own no bucket
      SLUICE_ASSIGN_OR_RETURN(states.host, context_.memory->LeaseFixed(size));
    }
    SLUICE_ASSIGN_OR_RETURN(
        states.copies, context_.memory->StartCopies(context_.WantsTrace()));
    return std::make_unique<HostStates>(std::move(states));
  }

  absl::Status PrepareOptimizer() {
    const RunOptions& o = *context_.options;
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(static_cast<uint64_t>(o.seed));
    if (!o.resume.empty()) SLUICE_RETURN_IF_ERROR(Resume());
    std::unique_ptr<HostStates> host;
    if (context_.states == stream::StatePlace::kHost) {
      SLUICE_ASSIGN_OR_RETURN(host, LeaseStates());
    }
    const bool clear = host != nullptr && !resumed_.has_value();
    optimizer_ = std::make_unique<AdamW>(OptimizerOptions(o), context_.weights,
                                         context_.gradients,
                                         context_.collectives, std::move(host));
    context_.pending = optimizer_.get();
    if (clear) return optimizer_->ClearHost(*context_.stage);
    if (!resumed_.has_value()) return absl::OkStatus();
    return resumed_->LoadOptimizer(*optimizer_, *context_.stage);
  }

  absl::Status Resume() {
    const RunOptions& o = *context_.options;
    SLUICE_ASSIGN_OR_RETURN(resumed_,
                            OpenCheckpoint(o.resume, o, *context_.environment));
    if (corpus_ != nullptr) {
      SLUICE_RETURN_IF_ERROR(resumed_->CheckData(o, state_.identity));
      state_.next_token = resumed_->state.NextToken(corpus_->tokens());
    }
    state_.step = resumed_->state.step;
    state_.identity.run = resumed_->state.identity.run;
    report_->resumed = {{"checkpoint", resumed_->path},
                        {"step", state_.step},
                        {"run", state_.identity.run}};
    return resumed_->LoadWeights(*context_.weights, *context_.stage);
  }

  // Claims the --save folder once all ranks agree on checkpoint and text.
  absl::Status PrepareSaver() {
    const RunOptions& o = *context_.options;
    const std::string own =
        fmt::format("step {} of run '{}', on the text {}", state_.step,
                    state_.identity.run, state_.identity.data);
    SLUICE_ASSIGN_OR_RETURN(const std::string first,
                            ShareText(context_.collectives, own, 0));
    SLUICE_RETURN_IF_ERROR(runtime::Agree(
        context_.collectives,
        own == first
            ? absl::OkStatus()
            : BadInput("this rank starts from {}, rank 0 from {}: give all "
                       "ranks the same --resume and --data",
                       own, first)));
    if (state_.identity.run.empty()) {
      SLUICE_ASSIGN_OR_RETURN(state_.identity.run,
                              ShareText(context_.collectives, NewRunId(), 0));
    }
    report_->run = state_.identity.run;
    absl::Status claimed;
    if (!o.save.empty() && !o.probe && context_.environment->rank == 0) {
      auto folder =
          SaveFolder::Claim(o.save, state_.identity,
                            resumed_.has_value() ? &resumed_->state : nullptr);
      claimed = folder.status();
      if (folder.ok()) folder_ = *std::move(folder);
    }
    if (!o.save.empty() && !o.probe) {
      SLUICE_RETURN_IF_ERROR(runtime::Agree(context_.collectives, claimed));
    }
    if (resumed_.has_value()) Note(resumed_->Describe());
    return absl::OkStatus();
  }

  void Note(const std::string& text) {
    if (log_ != nullptr && !text.empty()) log_->Note(text);
  }

  // Reports the settings in use. They may differ from the chosen ones, because
  // keeping everything on the GPU was only estimated to fit.
  void ReportChoice() {
    const runtime::StreamedStepper* const run = stepper_->streamed();
    if (run == nullptr) return;
    const RunOptions& o = *context_.options;
    const stream::FractionMap fractions = run->fractions();
    report_->alpha = run->alpha();
    report_->settings = {
        .chunk = o.chunk,
        .prefetch = o.prefetch,
        .order = *o.order,
        .resident = fractions == stream::KeepEverything(o.model),
        .rerun_layers = std::max<int64_t>(o.rerun_layers, 1),
        .rerun_chunks = o.rerun_chunks,
        .kept = o.kept};
    report_->price = stepper_->price();
    report_->fractions = stepper_->own_plan()->classes;
    for (plan::ClassPlan& c : report_->fractions) {
      const auto runs = fractions.find(c.name);
      if (runs == fractions.end()) continue;
      const auto [keep, swap] = runs->second;
      c.fractions = {keep, swap, 1 - keep - swap};
    }
    for (const auto& [name, f] : fractions) {  // no plan has scratch classes
      const stream::ClassTraits& c = *stream::FindClass(name);
      if (c.life != stream::Life::kScratch || !HasClass(*o.order, c.which)) {
        continue;
      }
      report_->fractions.push_back(
          {name, {f.keep, f.swap, 1 - f.keep - f.swap}, /*why=*/""});
    }
  }

  // Opens the log, and checks that outputs can be written at the run's end.
  absl::Status PrepareOutputs() {
    const RunOptions& o = *context_.options;
    if (context_.environment->rank != 0 || o.probe) return absl::OkStatus();
    std::unique_ptr<JsonlFile> file;
    if (!o.log_jsonl.empty()) {
      SLUICE_ASSIGN_OR_RETURN(file, JsonlFile::Open(o.log_jsonl));
    }
    log_ = std::make_unique<StepLog>(std::move(file), o.steps,
                                     &context_.watch->console());
    if (!o.trace.empty()) SLUICE_RETURN_IF_ERROR(CheckTracePath(o.trace));
    return o.save.empty() ? absl::OkStatus() : CheckSaveFolder(o.save);
  }

  absl::Status Prepare() {
    const RunOptions& o = *context_.options;
    absl::Status status = PrepareOutputs();
    if (status.ok()) status = PrepareData();
    if (status.ok()) status = PrepareOptimizer();
    SLUICE_RETURN_IF_ERROR(runtime::Agree(context_.collectives, status));
    SLUICE_RETURN_IF_ERROR(PrepareSaver());
    SLUICE_RETURN_IF_ERROR(Choose());
    // Ids and labels are allocated before the plan, which then knows the room
    // that they leave for transient buffers.
    const int rank = context_.environment->rank;
    const stream::ChunkLayout layout(
        o.seq_len,
        o.method == Method::kSluice ? context_.options->chunk : o.seq_len,
        context_.environment->world_size);
    const int64_t rows = layout.total_local_rows(rank);
    tokens_ =
        at::zeros({rows}, runtime::On(context_.memory->device(), at::kLong));
    labels_ = at::zeros_like(tokens_);
    dealt_.resize(static_cast<size_t>(rows));
    dealt_labels_.resize(static_cast<size_t>(rows));
    SLUICE_RETURN_IF_ERROR(PrepareStepper());
    ReportChoice();
    const std::string note =
        stepper_->streamed() != nullptr ? stepper_->streamed()->note() : "";
    if (context_.options->resident && !report_->settings->resident) {
      report_->settings_why += "; " + note;
    }
    ExpectSteps(context_, *stepper_);
    Announce(context_, *stepper_, report_->settings_why);
    Note(report_->states_why);
    Note(note);
    if (corpus_ != nullptr) {
      dealer_ = std::make_unique<Dealer>(corpus_.get(), layout, rank);
    }
    context_.memory->allocator().ResetPeak();
    // If a stop was requested during set-up, there is nothing to save.
    const bool stop = context_.watch->HearStop(state_.step + 1);
    SLUICE_ASSIGN_OR_RETURN(stop_,
                            runtime::AnyRank(context_.collectives, stop));
    context_.watch->Enter(RankPhase::kReady);
    return absl::OkStatus();
  }

  absl::StatusOr<runtime::StepResult> RunMicroBatches() {
    const int64_t global_count = context_.options->step_tokens();
    optimizer_->ZeroGradients();
    runtime::StepResult sum;
    next_token_ = state_.next_token;
    for (int64_t i = 0; i < context_.options->sequences(); ++i) {
      context_.watch->BeginSequence(i);
      if (i + 1 == context_.options->sequences())
        optimizer_->BeginLastSequence();
      if (dealer_ != nullptr) {
        SLUICE_RETURN_IF_ERROR(
            dealer_->Deal(next_token_, dealt_, dealt_labels_));
        SLUICE_RETURN_IF_ERROR(context_.stage->Write(tokens_, dealt_.data()));
        SLUICE_RETURN_IF_ERROR(
            context_.stage->Write(labels_, dealt_labels_.data()));
        next_token_ = dealer_->Next(next_token_);
      }
      SLUICE_ASSIGN_OR_RETURN(const runtime::StepResult one,
                              stepper_->Run(tokens_, labels_, global_count));
      sum.loss_sum += one.loss_sum;
      sum.count += one.count;
    }
    return sum;
  }

  absl::StatusOr<Sums> SumOverRanks(const runtime::StepResult& own, bool stop) {
    const runtime::HostScope host("sums of a step");
    const int world = context_.environment->world_size;
    const int rank = context_.environment->rank;
    // Each rank has slots of its own, so that the sum holds every rank's value.
    at::Tensor sums = at::zeros({4 + 3 * world}, runtime::OnHost(at::kDouble));
    double* values = sums.data_ptr<double>();
    values[0] = own.loss_sum;
    values[1] = static_cast<double>(own.count);
    values[2] = static_cast<double>(stepper_->host_bytes().count());
    values[3] = stop ? 1 : 0;
    double* peaks = values + 4;
    double* plans = peaks + world;
    double* nodes = plans + world;
    peaks[rank] =
        static_cast<double>(context_.memory->allocator().stats().peak.count());
    if (runtime::StreamedStepper* const run = stepper_->streamed()) {
      plans[rank] = static_cast<double>(run->OfferedPlan());
    }
    nodes[rank] = context_.environment->node;
    if (context_.collectives != nullptr) {
      SLUICE_RETURN_IF_ERROR(context_.collectives->SumAll(sums));
    }
    Sums result{.loss = values[0] / values[1],
                .host = Bytes(static_cast<int64_t>(values[2])),
                .stop = values[3] > 0};
    std::vector<runtime::PlanOffer> offers;
    for (int r = 0; r < world; ++r) {
      const Bytes peak(static_cast<int64_t>(peaks[r]));
      result.hbm_peak = std::max(result.hbm_peak, peak);
      offers.push_back(
          {static_cast<uint64_t>(plans[r]), static_cast<int64_t>(nodes[r])});
    }
    result.takes = runtime::WhoTakes(offers);
    return result;
  }

  // Includes the copies of the optimizer's states.
  client::CopyStats Copies() const {
    client::CopyStats all = stepper_->copies();
    if (optimizer_->host() == nullptr) return all;
    const auto states = optimizer_->host()->copies().stats();
    all.h2d += states.h2d;
    all.d2h += states.d2h;
    all.grant_wait += states.grant_wait;
    all.stall += states.stall;
    return all;
  }

  std::vector<client::CopyRecord> TakeCopies() {
    auto all = stepper_->TakeCopies();
    if (optimizer_->host() == nullptr) return all;
    std::ranges::move(optimizer_->host()->copies().TakeTimeline(),
                      std::back_inserter(all));
    return all;
  }

  absl::Status Step() {
    const RunOptions& o = *context_.options;
    const absl::Time start = absl::Now();
    context_.watch->BeginStep(state_.step + 1, o.sequences());
    copies_before_ = Copies();
    mismatches_before_ = context_.memory->allocator().stats().mismatches;
    SLUICE_ASSIGN_OR_RETURN(const runtime::StepResult own, RunMicroBatches());
    context_.watch->At("the optimizer");
    const bool stop = context_.watch->HearStop(state_.step + 2);
    SLUICE_ASSIGN_OR_RETURN(const Sums before, SumOverRanks(own, stop));
    SLUICE_ASSIGN_OR_RETURN(const double norm, optimizer_->ReduceGradients());
    if (!std::isfinite(before.loss) || !std::isfinite(norm)) {
      const bool forward = std::isfinite(before.loss);
      return absl::InternalError(Explain(
          {.step = state_.step + 1,
           .first_step = state_.step + 1 - report_->steps,
           .loss = before.loss,
           .norm = norm,
           .lr = LearningRate(OptimizerOptions(o), state_.step),
           .weight = FirstNonFinite(*context_.weights),
           .gradient = forward ? FirstNonFinite(*context_.gradients) : "",
           .resumed = resumed_.has_value()},
          o));
    }
    SLUICE_RETURN_IF_ERROR(optimizer_->Update(state_.step, norm));
    // Baselines never await a part, so the update is finished here.
    if (o.method != Method::kSluice) {
      SLUICE_RETURN_IF_ERROR(optimizer_->FinishUpdate());
    }
    ++state_.step;
    state_.next_token = next_token_;
    stop_ = before.stop;
    takes_ = before.takes;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    context_.watch->EndStep(seconds);
    Record(before, norm, seconds);
    return absl::OkStatus();
  }

  void Record(const Sums& sums, double norm, double seconds) {
    const client::CopyStats copies = Copies();
    const StepMetrics m{
        .step = state_.step,
        .loss = sums.loss,
        .grad_norm = norm,
        .lr =
            LearningRate(OptimizerOptions(*context_.options), state_.step - 1),
        .tokens = context_.options->step_tokens(),
        .seconds = seconds,
        .expected_seconds = context_.watch->expected_s(),
        .hbm_peak = sums.hbm_peak,
        .hbm_total = context_.memory->size(),
        .host = sums.host,
        .grant_wait_seconds = absl::ToDoubleSeconds(copies.grant_wait -
                                                    copies_before_.grant_wait),
        .stall_seconds =
            absl::ToDoubleSeconds(copies.stall - copies_before_.stall),
        .h2d = copies.h2d - copies_before_.h2d,
        .d2h = copies.d2h - copies_before_.d2h,
        .plan_mismatches = context_.memory->allocator().stats().mismatches,
        .plan_changes = std::ssize(report_->plan_changes)};
    seconds_ += seconds;
    report_->losses.push_back(m.loss);
    report_->steps += 1;
    report_->peak_hbm = std::max(report_->peak_hbm, m.hbm_peak);
    report_->host = m.host;
    report_->grant_wait_seconds += m.grant_wait_seconds;
    report_->stall_seconds += m.stall_seconds;
    StepReport step{m.step, seconds,         m.h2d,
                    m.d2h,  m.stall_seconds, m.grant_wait_seconds};
    step.hbm_peak = context_.memory->allocator().stats().peak;
    step.host_peak = stepper_->host_bytes();
    step.tokens =
        stepper_->layout().total_local_rows(context_.environment->rank) *
        context_.options->sequences();
    step.loss = m.loss;
    step.plan_mismatches = m.plan_mismatches - mismatches_before_;
    // Without a daemon the report is dropped, and training continues.
    context_.memory->session().Report(step).IgnoreError();
    if (log_ == nullptr) return;
    if (report_->steps == 1 && m.expected_seconds > 0) {
      log_->Note(fmt::format("step {} took {}; {} were expected", m.step,
                             Duration(seconds), Duration(m.expected_seconds)));
    }
    log_->Step(m);
  }

  // All ranks decided from the same sum, so all call Refresh or none does.
  absl::Status TakePlan() {
    if (std::ranges::count(takes_, true) == 0) return absl::OkStatus();
    const auto rank = static_cast<size_t>(context_.environment->rank);
    SLUICE_RETURN_IF_ERROR(optimizer_->FinishUpdate());
    SLUICE_ASSIGN_OR_RETURN(runtime::PlanChangeRecord change,
                            stepper_->streamed()->Refresh(takes_[rank]));
    change.step = state_.step;
    Note(change.note);
    ReportChoice();
    ExpectSteps(context_, *stepper_);
    context_.watch->Enter(RankPhase::kReady);
    report_->plan_changes.push_back(std::move(change));
    return absl::OkStatus();
  }

  // A failed save is reported and tried again; an error means a lost peer.
  absl::Status Save() {
    runtime::Collectives* const all = context_.collectives;
    const int64_t step = state_.step;
    failure_ = folder_ != nullptr ? folder_->Begin(step) : absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(ShareFault(all, failure_));
    if (failure_.ok()) {
      failure_ = WriteCheckpoint(
          SaveFolder::Temporary(context_.options->save, step), context_, state_,
          *optimizer_, stepper_->saved_plan());
      SLUICE_RETURN_IF_ERROR(ShareFault(all, failure_));
    }
    if (failure_.ok()) {
      if (folder_ != nullptr) failure_ = folder_->Commit(step);
      SLUICE_RETURN_IF_ERROR(ShareFault(all, failure_));
    }
    SaveReport& report = report_->saves;
    if (failure_.ok()) {
      report.done += 1;
      report.last_step = step;
      if (folder_ != nullptr) {
        folder_->Rotate(context_.options->keep_checkpoints);
      }
      return absl::OkStatus();
    }
    // Frees the disk space of a half written checkpoint.
    if (folder_ != nullptr) folder_->Abandon(step);
    report.failed += 1;
    report.failed_step = step;
    report.limited_by = LimitedBy(failure_);
    report.failure = std::string(failure_.message());
    return absl::OkStatus();
  }

  absl::Status MaybeSave(bool last) {
    const RunOptions& o = *context_.options;
    if (o.save.empty()) return absl::OkStatus();
    const bool due = o.save_every > 0 && state_.step % o.save_every == 0;
    if (!last && !due) return absl::OkStatus();
    context_.watch->Enter(RankPhase::kSaving);
    SLUICE_RETURN_IF_ERROR(optimizer_->FinishUpdate());
    const absl::Status saved = Save();
    context_.watch->Enter(RankPhase::kReady);
    SLUICE_RETURN_IF_ERROR(saved);
    if (!failure_.ok() && !last) {
      Note(fmt::format(
          "step {} is not saved: {}; the run goes on and saves again when the "
          "next save is due",
          state_.step, std::string(failure_.message())));
    }
    return absl::OkStatus();
  }

  absl::Status Loop() {
    const RunOptions& o = *context_.options;
    bool saved = false;
    const int64_t first = state_.step;
    if (state_.step >= o.steps) {
      Note(
          fmt::format("nothing to do: step {} is reached and --steps is {}; "
                      "raise --steps to train on",
                      state_.step, o.steps));
    }
    while (state_.step < o.steps && !stop_) {
      const bool last = state_.step + 1 == o.steps;
      const bool traced = last && context_.WantsTrace();
      std::string trace;
      if (traced) {
        TakeCopies();  // drops copies of earlier steps
        context_.memory->allocator().RecordTimeline(true);
      }
      SLUICE_RETURN_IF_ERROR(Step());
      if (traced) trace = EndTrace(*context_.memory, TakeCopies());
      // Saves first, so that a trace that cannot be written loses no step.
      SLUICE_RETURN_IF_ERROR(MaybeSave(last || stop_));
      if (traced) SLUICE_RETURN_IF_ERROR(WriteTrace(o.trace, trace));
      saved = last || stop_;
      if (!saved) SLUICE_RETURN_IF_ERROR(TakePlan());
    }
    SLUICE_RETURN_IF_ERROR(optimizer_->FinishUpdate());
    // A signal in the last step interrupted nothing.
    report_->interrupted = stop_ && state_.step < o.steps;
    if (report_->interrupted) {
      const bool kept = saved && !o.save.empty() && failure_.ok();
      Note(state_.step == first
               ? std::string("stopped before the first step")
               : fmt::format("stopped after step {}{}", state_.step,
                             kept ? ", saved" : ""));
    }
    if (!saved || failure_.ok()) return absl::OkStatus();
    // If the last save failed, the run has failed, though all its steps ran.
    const absl::Status status = Annotate(
        failure_, fmt::format("step {}, the last, is not saved", state_.step));
    return context_.environment->rank == 0 ? WithAdvice(status)
                                           : CausedByPeer(status);
  }

  // Runs forward and backward once; all other memory is allocated by now.
  absl::Status Probe() {
    SLUICE_ASSIGN_OR_RETURN(const runtime::StepResult own, RunMicroBatches());
    SLUICE_RETURN_IF_ERROR(optimizer_->ReduceGradients().status());
    SLUICE_ASSIGN_OR_RETURN(const Sums sums, SumOverRanks(own, /*stop=*/false));
    report_->peak_hbm = sums.hbm_peak;
    report_->host = sums.host;
    return absl::OkStatus();
  }

  void FinishReport() {
    if (stepper_ != nullptr && stepper_->streamed() != nullptr) {
      report_->plan = stepper_->streamed()->plan();
    }
    if (log_ != nullptr) report_->log_lines_unwritten = log_->unwritten();
    report_->peak_hbm =
        std::max(report_->peak_hbm, context_.memory->allocator().stats().peak);
    if (seconds_ <= 0 || report_->steps == 0) return;
    const double steps = static_cast<double>(report_->steps);
    report_->seconds_per_step = seconds_ / steps;
    report_->tokens_per_second =
        static_cast<double>(context_.options->step_tokens()) * steps / seconds_;
  }

  StepperContext context_;
  RunOptions chosen_;  // context_'s options with the chosen settings
  RunReport* report_;
  std::unique_ptr<Corpus> corpus_;
  std::unique_ptr<Dealer> dealer_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<StepLog> log_;
  std::unique_ptr<SaveFolder> folder_;  // rank 0's, with --save
  absl::Status failure_;                // of the last save, on all ranks
  std::optional<Checkpoint> resumed_;
  at::Tensor tokens_, labels_;
  std::vector<int64_t> dealt_, dealt_labels_;  // tokens_, labels_ on the CPU
  StateFile state_;
  int64_t next_token_ = 0;           // state_.next_token after this step
  client::CopyStats copies_before_;  // before the step
  int64_t mismatches_before_ = 0;
  double seconds_ = 0;  // of all steps of this run
  bool stop_ = false;
  std::vector<bool> takes_;  // Sums::takes of the last step
};

}  // namespace

absl::Status Train(const StepperContext& context, RunReport* report) {
  return Trainer(context, report).Run();
}

}  // namespace sluice::train
