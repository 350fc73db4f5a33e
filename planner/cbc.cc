// The only file that uses CBC (clp.cc is the only one that uses Clp).
//
// CBC is not re-entrant (two models solved in two threads fail at start-up,
// coin-or/Cbc #332), so one lock covers all solves.
#include <coin/Cbc_C_Interface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "planner/memory/mip_process.h"
#include "proto/base/mutex.h"

namespace sluice::planner {
namespace {

// Upper limit of the scaled peak. With a big M of 3e7, CBC's integrality
// tolerance of 1e-6 would be worth 30 units.
constexpr double kScaledPeak = 8192;

// The program, for items of size s_i at offset o_i:
// min peak
//   o_i + s_i <= o_j + M (1 - z_ij),  o_j + s_j <= o_i + M z_ij
//       for i < j that live together: z_ij = 1 if i lies below j
//   o_j >= sum of s_i over i below j,
//   o_j + s_j + sum of s_i over i above j <= peak
//       for every slot that j lives in, over the items of the slot;
//       these rows raise the bound of the relaxation
//   bound <= peak <= start's peak,  z_ij = 1 for equal items i < j
// M is the start's peak, the smallest valid value.
class DsaMip {
 public:
  DsaMip(const Problem& problem, const Offsets& start, int64_t bound)
      : problem_(problem),
        n_(problem.items.size()),
        start_peak_(PeakOf(problem, start)),
        scale_(std::max(1.0, static_cast<double>(start_peak_) / kScaledPeak)),
        bound_(bound),
        model_(Cbc_newModel()),
        pair_column_(n_ * n_, -1) {
    AddColumns();
    AddPairRows();
    for (size_t slot = 0; slot < problem.live.size(); ++slot) {
      AddCliqueRows(static_cast<int32_t>(slot));
    }
    SetStart(start);
  }
  ~DsaMip() { Cbc_deleteModel(model_); }
  DsaMip(const DsaMip&) = delete;
  DsaMip& operator=(const DsaMip&) = delete;

  MipResult Solve(absl::Duration time_limit) {
    SetParameters(time_limit);
    Cbc_solve(model_);
    MipResult result{.bound = ProvedBound()};
    // Without a solution the objective is 1e50 or DBL_MAX, so only the pointer
    // shows whether there is one.
    const double* values = Cbc_bestSolution(model_);
    if (values == nullptr) return result;
    Offsets offsets = OffsetsFrom(values);
    if (PeakOf(problem_, offsets) < start_peak_) {
      result.offsets = std::move(offsets);
    }
    return result;
  }

 private:
  double Scaled(int64_t units) const {
    return static_cast<double>(units) / scale_;
  }
  double SizeOf(size_t k) const { return Scaled(problem_.items[k].size); }

  bool Together(size_t i, size_t j) const {
    const Item& a = problem_.items[i];
    const Item& b = problem_.items[j];
    return a.lower < b.upper && b.lower < a.upper;
  }
  bool Equal(size_t i, size_t j) const {
    const Item& a = problem_.items[i];
    const Item& b = problem_.items[j];
    return a.lower == b.lower && a.upper == b.upper && a.size == b.size;
  }

  // Returns the column's index. SetStart needs `name`, because CBC takes a MIP
  // start by names.
  int AddColumn(const std::string& name, double lower, double upper,
                double cost, bool integer) {
    Cbc_addCol(model_, name.c_str(), lower, upper, cost, integer, 0, nullptr,
               nullptr);
    names_.push_back(name);
    return static_cast<int>(names_.size()) - 1;
  }

  void AddColumns() {
    for (size_t k = 0; k < n_; ++k) {
      AddColumn(fmt::format("o{}", k), 0,
                Scaled(start_peak_ - problem_.items[k].size), 0, false);
    }
    peak_column_ =
        AddColumn("peak", Scaled(bound_), Scaled(start_peak_), 1, false);
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = i + 1; j < n_; ++j) {
        if (!Together(i, j)) continue;
        const double least = Equal(i, j) ? 1 : 0;
        pair_column_[i * n_ + j] =
            AddColumn(fmt::format("z{}_{}", i, j), least, 1, 0, true);
      }
    }
  }

  void AddRow(const std::vector<std::pair<int, double>>& terms, char sense,
              double right) {
    std::vector<int> columns;
    std::vector<double> values;
    for (const auto& [column, value] : terms) {
      columns.push_back(column);
      values.push_back(value);
    }
    const std::string name = fmt::format("r{}", rows_++);
    Cbc_addRow(model_, name.c_str(), static_cast<int>(columns.size()),
               columns.data(), values.data(), sense, right);
  }

  void AddPairRows() {
    const double big = Scaled(start_peak_);
    for (size_t i = 0; i < n_; ++i) {
      const int o_i = static_cast<int>(i);
      AddRow({{o_i, 1}, {peak_column_, -1}}, 'L', -SizeOf(i));
      for (size_t j = i + 1; j < n_; ++j) {
        const int z = pair_column_[i * n_ + j];
        if (z < 0) continue;
        const int o_j = static_cast<int>(j);
        AddRow({{o_i, 1}, {o_j, -1}, {z, big}}, 'L', big - SizeOf(i));
        AddRow({{o_j, 1}, {o_i, -1}, {z, -big}}, 'L', -SizeOf(j));
      }
    }
  }

  // Adds `weight` times (1 if i lies below j, else 0) to a row.
  void AddBelow(size_t i, size_t j, double weight,
                std::vector<std::pair<int, double>>* terms,
                double* constant) const {
    if (i < j) {
      terms->emplace_back(pair_column_[i * n_ + j], weight);
    } else {
      terms->emplace_back(pair_column_[j * n_ + i], -weight);
      *constant += weight;
    }
  }

  void AddCliqueRows(int32_t slot) {
    std::vector<size_t> clique;
    for (size_t k = 0; k < n_; ++k) {
      const Item& item = problem_.items[k];
      if (item.lower <= slot && slot < item.upper) clique.push_back(k);
    }
    for (const size_t j : clique) {
      std::vector<std::pair<int, double>> below = {{static_cast<int>(j), 1}};
      std::vector<std::pair<int, double>> above = {{static_cast<int>(j), 1},
                                                   {peak_column_, -1}};
      double below_constant = 0;
      double above_constant = SizeOf(j);
      for (const size_t i : clique) {
        if (i == j) continue;
        AddBelow(i, j, -SizeOf(i), &below, &below_constant);
        AddBelow(j, i, SizeOf(i), &above, &above_constant);
      }
      AddRow(below, 'G', -below_constant);
      AddRow(above, 'L', -above_constant);
    }
  }

  // Swaps the offsets of equal items so that z_ij = 1 holds for them.
  Offsets Canonical(Offsets start) const {
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = i + 1; j < n_; ++j) {
        if (Equal(i, j) && start[j] < start[i]) std::swap(start[i], start[j]);
      }
    }
    return start;
  }

  void SetStart(const Offsets& given) {
    const Offsets start = Canonical(given);
    std::vector<double> values(names_.size());
    for (size_t k = 0; k < n_; ++k) values[k] = Scaled(start[k]);
    values[static_cast<size_t>(peak_column_)] = Scaled(start_peak_);
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = i + 1; j < n_; ++j) {
        const int z = pair_column_[i * n_ + j];
        if (z >= 0) values[static_cast<size_t>(z)] = start[i] < start[j];
      }
    }
    std::vector<const char*> names;
    for (const std::string& name : names_) names.push_back(name.c_str());
    Cbc_setMIPStart(model_, static_cast<int>(names.size()), names.data(),
                    values.data());
  }

  void SetParameters(absl::Duration time_limit) {
    const double seconds = std::max(0.01, absl::ToDoubleSeconds(time_limit));
    Cbc_setLogLevel(model_, 0);
    Cbc_setParameter(model_, "log", "0");
    Cbc_setParameter(model_, "slog", "0");
    // Without this parameter the limit would be CPU time.
    Cbc_setParameter(model_, "timeMode", "elapsed");
    Cbc_setParameter(model_, "seconds", fmt::format("{:.3f}", seconds).c_str());
    Cbc_setParameter(model_, "threads", "0");
    // Limits the work, so that the clock rarely decides the result.
    Cbc_setParameter(model_, "maxNodes", "20000");
    // CBC 2.10.8 reads a null pointer in CglPreProcess::postProcess when the
    // time limit ends a solve that was preprocessed.
    Cbc_setParameter(model_, "preprocess", "off");
    // Cuts and heuristics would double the time that this program takes.
    Cbc_setParameter(model_, "cuts", "off");
    Cbc_setParameter(model_, "heuristicsOnOff", "off");
    // Peaks are whole units, so a gap below one unit is no improvement.
    Cbc_setAllowableGap(model_, 0.999 / scale_);
  }

  int64_t ProvedBound() const {
    if (Cbc_isAbandoned(model_)) return bound_;
    const double best = Cbc_getBestPossibleObjValue(model_) * scale_;
    if (!(best > 0 && best <= static_cast<double>(start_peak_) + 0.5)) {
      return bound_;
    }
    const double tolerance = 2e-4 * scale_;
    return std::max(bound_, static_cast<int64_t>(std::ceil(best - tolerance)));
  }

  // Returns integer offsets: sorts the items by CBC's offsets, and places each
  // as low as the items before it allow.
  Offsets OffsetsFrom(const double* values) const {
    std::vector<size_t> order(n_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [values](size_t a, size_t b) {
      return values[a] < values[b];
    });
    Offsets offsets(n_, 0);
    for (size_t rank = 0; rank < n_; ++rank) {
      const size_t k = order[rank];
      for (size_t below = 0; below < rank; ++below) {
        const size_t other = order[below];
        if (!Together(k, other)) continue;
        offsets[k] =
            std::max(offsets[k], offsets[other] + problem_.items[other].size);
      }
    }
    return offsets;
  }

  const Problem& problem_;
  const size_t n_;
  const int64_t start_peak_;
  const double scale_;  // units per scaled unit
  const int64_t bound_;
  Cbc_Model* model_;
  std::vector<std::string> names_;  // names of the columns; o_k is column k
  std::vector<int> pair_column_;    // column of z_ij at i * n + j, or -1
  int peak_column_ = 0;
  int rows_ = 0;
};

}  // namespace

MipResult SolveDsaMip(const Problem& problem, const Offsets& start,
                      int64_t bound, absl::Duration time_limit) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  return DsaMip(problem, start, bound).Solve(time_limit);
}

}  // namespace sluice::planner
