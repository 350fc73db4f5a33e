// Compares the cost model's estimates with the papers' tables, with the
// published settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/published.h"
#include "planner/train/settings.h"

namespace sluice::planner::train {

// One cell of MEMO's tables with the cost model's result. For a cell without
// degrees, settings are searched. A cell that ran out of memory is right if no
// settings fit.
struct ValidatedCell : PublishedCell {
  double mfu = 0;  // estimated, as a fraction
  bool fits = false;
  Settings used;
  bool searched = false;
  bool published_fits() const { return mfu_percent.has_value(); }
  bool right() const { return fits == published_fits(); }
  // Returns the estimated MFU minus the published MFU, in percentage points.
  std::optional<double> difference() const;
};

// One row of FPDT's table 1, with the estimated longest context in `ours`.
struct ValidatedLength : PublishedLength {
  int64_t ours = 0;
  // `ours` rounded down to a power of two, and if or_more to at most `tokens`.
  int64_t rounded = 0;
  std::string stopped_by;
  int doublings() const;  // log2 of rounded / tokens
};

// One published row that a method models; `ours` has its estimate.
struct ValidatedRow : PublishedRow {
  double ours = 0;
  bool fits = false;
  double error() const { return ours / value - 1; }  // relative
};

// The absolute errors of the judged rows of one or several publications.
struct JudgedGroup {
  std::string name;
  int rows = 0;
  double median = 0, worst = 0;
  double median_must = 0, worst_must = 0;  // limits of median and worst
  bool ok() const { return median <= median_must && worst <= worst_must; }
};

struct MethodSummary {
  std::string name;  // "MEMO", "DeepSpeed-Ulysses", "Megatron-LM", "ablation"
  int cells = 0;     // cells with a published MFU
  double mean_difference = 0;  // mean absolute difference, in points
  double mean_bias = 0;        // mean signed difference, in points
  double must = 0;             // limit of mean_difference
};

struct Validation {
  std::vector<ValidatedCell> cells;
  std::vector<ValidatedLength> lengths;
  std::vector<MethodSummary> methods;
  std::vector<ValidatedRow> rows;
  std::vector<JudgedGroup> judged;
  double fits_right = 0;      // fraction of cells
  double lengths_within = 0;  // fraction of lengths within one doubling
  double lengths_exact = 0;
  // Returns whether cells and lengths are within their limits. Judged groups
  // have their own ok().
  bool ok() const;
};

inline constexpr double kFitsMust = 0.94;
inline constexpr double kWithinMust = 0.90;
inline constexpr double kExactMust = 0.60;

// Compares all tables. Fails only if shipped files are broken.
absl::StatusOr<Validation> ValidateOnPapers();

// Compares MEMO's tables with another profile of their machine, for fitting.
absl::StatusOr<std::vector<ValidatedCell>> ValidateCells(
    const Hardware& memo_hardware);

}  // namespace sluice::planner::train
