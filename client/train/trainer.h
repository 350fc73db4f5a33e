// The training loop of one rank.
//
// A step is batch x accumulate sequences, one after the other: a streamed
// sequence fills the rings by itself, so batching rows of several would gain
// nothing. Their gradients add up, divided by the number of labels of all of
// them. The update may end in the next step's forward (adamw.h); a save, a new
// plan and the run's end wait for it. Every decision that all ranks must share
// (stop on NaN, stop on Ctrl-C) is made from sums that all of them have.
// Thread safety: one thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/train/checkpoint/checkpoint.h"
#include "client/train/data/corpus.h"
#include "client/train/metrics.h"
#include "client/train/optimizer/adamw.h"
#include "client/train/run_report.h"
#include "client/train/saver.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

class Trainer {
 public:
  // All objects that `context` points to outlive the trainer. `report` is
  // updated during the run, so that it is right however the run ends.
  Trainer(const StepperContext& context, RunReport* report)
      : context_(context), report_(report) {}

  absl::Status Run();

 private:
  // One step's sums over the ranks.
  struct Sums {
    double loss = 0;
    Bytes host;
    bool stop = false;
    Bytes hbm_peak;
    std::vector<bool> takes;  // by rank: takes a new plan after this step
  };

  absl::Status Prepare();
  absl::Status PrepareOutputs();
  absl::Status PrepareData();
  absl::Status Choose();
  absl::Status PrepareStepper();
  absl::Status PrepareOptimizer();
  absl::StatusOr<std::unique_ptr<HostStates>> LeaseStates();
  // Returns the copies of the step and of the optimizer's states.
  client::CopyStats Copies() const;
  std::vector<client::CopyRecord> TakeCopies();
  absl::Status StopBeforeSteps();
  absl::Status Resume();
  absl::Status PrepareSaver();
  absl::Status Probe();
  absl::Status Loop();
  absl::Status Step();
  absl::StatusOr<runtime::StepResult> RunMicroBatches();
  absl::StatusOr<Sums> SumOverRanks(const runtime::StepResult& own, bool stop);
  std::string WhatWentWrong(double loss, double norm) const;
  void Record(const Sums& sums, double norm, double seconds);
  absl::Status TakePlan(const std::vector<bool>& takes);
  absl::Status MaybeSave(bool last);
  absl::Status SaveFailure() const;
  void Note(const std::string& text);
  void FinishReport();

  StepperContext context_;
  RunOptions chosen_;  // context_'s options with open settings filled in
  RunReport* report_;
  std::unique_ptr<Corpus> corpus_;
  std::unique_ptr<Dealer> dealer_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<StepLog> log_;
  std::unique_ptr<Saver> saver_;
  std::optional<Checkpoint> resumed_;
  at::Tensor tokens_, labels_;
  std::vector<int64_t> dealt_, dealt_labels_;  // the same ids in CPU memory
  RunIdentity identity_;
  TrainingState state_;
  int64_t next_token_ = 0;           // after this step
  client::CopyStats copies_before_;  // before the step
  int64_t mismatches_before_ = 0;
  double seconds_ = 0;  // of all steps of this run
  bool stop_ = false;
  std::vector<bool> takes_;  // at this step's end
};

}  // namespace sluice::train
