#include "planner/train/validate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/match.h"
#include "planner/train/constants.h"
#include "planner/train/search.h"
#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

absl::StatusOr<ValidatedCell> ValidateCell(const PublishedCell& cell,
                                           const Hardware& hardware) {
  SLUICE_ASSIGN_OR_RETURN(const ModelShape model, FindModel(cell.model));
  const Request request{.model = model,
                        .hardware = hardware,
                        .method = cell.method,
                        .gpus = cell.gpus,
                        .seq_len = cell.seq_len};
  // If the row gives any degree, the degrees that it leaves empty are 1.
  GivenSettings given = cell.settings;
  const bool named = given.tp || given.sp || given.cp;
  if (named) {
    for (auto* degree :
         {&given.tp, &given.cp, &given.sp, &given.dp, &given.pp}) {
      *degree = degree->value_or(1);
    }
  }
  // The papers did not search ZeRO: DeepSpeed uses stage 3, Megatron stage 1.
  given.zero = given.zero.value_or(cell.method == Method::kUlysses ? 3 : 1);
  SLUICE_ASSIGN_OR_RETURN(const Estimate estimate,
                          BestEstimate(request, given));
  return ValidatedCell{{cell},
                       estimate.mfu,
                       estimate.fits,
                       estimate.settings,
                       /*searched=*/!named};
}

absl::StatusOr<ValidatedLength> ValidateLength(const PublishedLength& row) {
  SLUICE_ASSIGN_OR_RETURN(const ModelShape model, FindModel(row.model));
  SLUICE_ASSIGN_OR_RETURN(const Hardware hardware, FindHardware(row.hardware));
  const Request request{.model = model,
                        .hardware = hardware,
                        .method = Method::kFpdt,
                        .gpus = row.gpus,
                        .seq_len = kLengthStep,
                        .global_batch = 1};
  // At batch 1 all GPUs share the sequence. The chunk is the paper's.
  const GivenSettings given{.sp = row.gpus, .zero = 3, .chunk = kFpdtChunk};
  SLUICE_ASSIGN_OR_RETURN(const LongestSequence longest,
                          FindLongest(request, given));
  ValidatedLength result{row};
  result.ours = longest.tokens;
  result.rounded = int64_t(std::bit_floor(uint64_t(longest.tokens)));
  if (row.or_more && result.rounded > row.tokens) result.rounded = row.tokens;
  result.stopped_by = ReasonName(longest.stopped_by);
  return result;
}

absl::StatusOr<ValidatedRow> ValidateRow(const PublishedRow& row) {
  SLUICE_ASSIGN_OR_RETURN(const ModelShape model, FindModel(row.model));
  SLUICE_ASSIGN_OR_RETURN(Hardware hardware, FindHardware(row.hardware));
  hardware.host_memory_bytes =
      row.host_bytes.value_or(hardware.host_memory_bytes);
  const Request request{.model = model,
                        .hardware = hardware,
                        .method = *row.method,
                        .gpus = row.gpus,
                        .seq_len = row.seq_len > 0 ? row.seq_len : kLengthStep,
                        .global_batch = row.global_batch};
  ValidatedRow result{row};
  Estimate estimate;
  if (row.seq_len == 0) {
    SLUICE_ASSIGN_OR_RETURN(LongestSequence longest,
                            FindLongest(request, row.settings));
    result.ours = double(longest.tokens);
    estimate = std::move(longest.at);
  } else {
    SLUICE_ASSIGN_OR_RETURN(estimate, BestEstimate(request, row.settings));
    result.ours = row.quantity == "mfu_pct" ? 100 * estimate.mfu
                                            : estimate.tokens_per_gpu_per_s;
  }
  result.fits = estimate.fits;
  return result;
}

std::vector<JudgedGroup> JudgeRows(const std::vector<ValidatedRow>& rows) {
  const double none = std::numeric_limits<double>::infinity();
  std::vector<JudgedGroup> groups = {
      {.name = "TorchTitan, Megatron, Llama 3",
       .median_must = 0.15,
       .worst_must = 0.35},
      {.name = "UPipe", .median_must = none, .worst_must = 0.15},
      {.name = "ALST", .median_must = none, .worst_must = 0.25},
      {.name = "FPDT", .median_must = none, .worst_must = 0.30}};
  for (JudgedGroup& group : groups) {
    std::vector<double> errors;
    for (const ValidatedRow& row : rows) {
      if (row.judged && absl::StrContains(group.name, row.publication)) {
        errors.push_back(std::abs(row.error()));
      }
    }
    std::sort(errors.begin(), errors.end());
    const size_t count = errors.size();
    group.rows = int(count);
    if (count == 0) continue;
    group.median = (errors[(count - 1) / 2] + errors[count / 2]) / 2;
    group.worst = errors.back();
  }
  return groups;
}

void Summarize(Validation& validation) {
  // The limits are in points of MFU.
  validation.methods = {{.name = "MEMO", .must = 1.5},
                        {.name = "DeepSpeed-Ulysses", .must = 2.5},
                        {.name = "Megatron-LM", .must = 5},
                        {.name = "ablation", .must = 3}};
  for (MethodSummary& summary : validation.methods) {
    for (const ValidatedCell& cell : validation.cells) {
      const std::string& name =
          cell.table == "ablation" ? cell.table : cell.label;
      if (name != summary.name || !cell.difference()) continue;
      ++summary.cells;
      summary.mean_difference += std::abs(*cell.difference());
      summary.mean_bias += *cell.difference();
    }
    if (summary.cells > 0) {
      summary.mean_difference /= summary.cells;
      summary.mean_bias /= summary.cells;
    }
  }
  for (const ValidatedCell& cell : validation.cells) {
    validation.fits_right += cell.right();
  }
  validation.fits_right /= double(validation.cells.size());
  for (const ValidatedLength& length : validation.lengths) {
    validation.lengths_within += std::abs(length.doublings()) <= 1;
    validation.lengths_exact += length.doublings() == 0;
  }
  validation.lengths_within /= double(validation.lengths.size());
  validation.lengths_exact /= double(validation.lengths.size());
}

}  // namespace

std::optional<double> ValidatedCell::difference() const {
  if (!mfu_percent) return std::nullopt;
  return mfu * 100 - *mfu_percent;
}

int ValidatedLength::doublings() const {
  if (rounded == 0) return -64;
  return int(std::lround(std::log2(double(rounded) / double(tokens))));
}

bool Validation::ok() const {
  return std::ranges::all_of(methods,
                             [](const MethodSummary& method) {
                               return method.mean_difference <= method.must;
                             }) &&
         fits_right >= kFitsMust && lengths_within >= kWithinMust &&
         lengths_exact >= kExactMust;
}

absl::StatusOr<std::vector<ValidatedCell>> ValidateCells(
    const Hardware& memo_hardware) {
  std::vector<ValidatedCell> cells;
  for (const PublishedCell& cell : PublishedCells()) {
    SLUICE_ASSIGN_OR_RETURN(cells.emplace_back(),
                            ValidateCell(cell, memo_hardware));
  }
  return cells;
}

absl::StatusOr<Validation> ValidateOnPapers() {
  SLUICE_ASSIGN_OR_RETURN(const Hardware hardware, FindHardware(kMemoHardware));
  Validation validation;
  SLUICE_ASSIGN_OR_RETURN(validation.cells, ValidateCells(hardware));
  for (const PublishedLength& row : PublishedLengths()) {
    SLUICE_ASSIGN_OR_RETURN(validation.lengths.emplace_back(),
                            ValidateLength(row));
  }
  for (const PublishedRow& row : PublishedRows()) {
    if (!row.method) continue;
    SLUICE_ASSIGN_OR_RETURN(validation.rows.emplace_back(), ValidateRow(row));
  }
  validation.judged = JudgeRows(validation.rows);
  Summarize(validation);
  return validation;
}

}  // namespace sluice::planner::train
