// The model against the papers' tables, given the published strategies.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/published.h"
#include "planner/train/settings.h"

namespace sluice::planner::train {

// One cell of MEMO's tables. A cell without a strategy is searched; one that
// ran out of memory is right when no strategy fits.
struct ValidatedCell : PublishedCell {
  double mfu = 0;  // ours, a fraction
  bool fits = false;
  Settings used;
  bool searched = false;
  bool published_fits() const { return mfu_percent.has_value(); }
  bool right() const { return fits == published_fits(); }
  // Points of MFU (percent), ours less published.
  std::optional<double> difference() const;
};

// One row of FPDT's table 1; `tokens` is its longest context.
struct ValidatedLength : PublishedLength {
  int64_t ours = 0;     // as found
  int64_t rounded = 0;  // down to a power of two, and to `tokens` if or_more
  std::string stopped_by;
  int doublings() const;  // ours less published, 0: exact
};

// One row of tables/published_rows.csv that a method here answers.
struct ValidatedRow : PublishedRow {
  double ours = 0;  // of `quantity`
  bool fits = false;
  // Relative to the published value.
  double error() const { return ours / value - 1; }
};

// The judged rows of one or several publications: absolute errors.
struct JudgedGroup {
  std::string name;
  int rows = 0;
  double median = 0, worst = 0;
  double median_must = 0, worst_must = 0;  // the limits
  bool ok() const { return median <= median_must && worst <= worst_must; }
};

struct MethodSummary {
  std::string name;  // "MEMO", "DeepSpeed-Ulysses", "Megatron-LM", "ablation"
  int cells = 0;     // with a published MFU
  double mean_difference = 0;  // of absolute values, in points
  double mean_bias = 0;        // signed
  double must = 0;             // the limit of mean_difference
};

struct Validation {
  std::vector<ValidatedCell> cells;
  std::vector<ValidatedLength> lengths;
  std::vector<MethodSummary> methods;
  std::vector<ValidatedRow> rows;
  std::vector<JudgedGroup> judged;
  double fits_right = 0;      // fraction of cells; must be >= 0.94
  double lengths_within = 0;  // within one doubling; >= 0.90
  double lengths_exact = 0;   // >= 0.60
  // Of the cells and lengths; judged groups have their own.
  bool ok() const;
};

inline constexpr double kFitsMust = 0.94;
inline constexpr double kWithinMust = 0.90;
inline constexpr double kExactMust = 0.60;

// A fault only where shipped files are broken.
absl::StatusOr<Validation> ValidateOnPapers();

// MEMO's tables alone, on another profile of its machine: what a fit tries.
absl::StatusOr<std::vector<ValidatedCell>> ValidateCells(
    const Hardware& memo_hardware);

}  // namespace sluice::planner::train
