#include "planner/swap/joint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;

constexpr double kFixed = 1e-9;  // relative tolerance of a stage's value
// A sum of all rows' excesses below this is rounding.
constexpr double kNoJointExcess = 1e-7;
constexpr double kNoDigits = 1e-11;
constexpr double kSnap = 1e-9;  // fractions this close to 0 or 1 become 0 or 1

double Snap(double fraction) {
  return fraction < kSnap ? 0 : fraction > 1 - kSnap ? 1 : fraction;
}

plan::TokenFractions CleanFractions(double swap, double recompute) {
  plan::TokenFractions f{.swap = Snap(swap), .recompute = Snap(recompute)};
  f.keep = Snap(1 - f.swap - f.recompute);
  if (f.keep == 0) f.recompute = 1 - f.swap;
  return f;
}

}  // namespace

JointProgram::JointProgram(const SwapProblem& problem,
                           const JointProgram* hidden)
    : problem_(problem),
      rows_(MakeJointRows(problem, /*stalls=*/hidden != nullptr)) {
  if (hidden == nullptr) return;
  rows_.solver->StartFrom(hidden->rows_.solver->basis(), /*dual=*/false);
}

// Minimises the objectives in turn, and bounds each by 1 + kFixed times its
// optimum before the next. While the values of `known` are within these bounds,
// they become the bounds, so that the answer is not worse than `known`.
absl::Status JointProgram::Stages(const SwapObjective* known, size_t first) {
  JointRows& s = rows_;
  const std::pair<int, double SwapObjective::*> objectives[] = {
      {s.step, &SwapObjective::step_s},
      {s.recompute, &SwapObjective::recompute_s},
      {s.moved, &SwapObjective::moved_bytes}};
  for (size_t k = 0; k < std::size(objectives); ++k) {
    s.solver->SetColumn(objectives[k].first, 0,
                        k < first ? solved_[k].most : kUnbounded);
  }
  for (size_t k = first; k < std::size(objectives); ++k) {
    const auto& [column, part] = objectives[k];
    const bool again = solved_.size() > k;
    if (again) s.solver->StartFrom(solved_[k].basis, /*dual=*/true);
    SLUICE_ASSIGN_OR_RETURN(double least, s.solver->Minimise(column));
    least = std::max(least, 0.0);
    double most = least * (1 + kFixed);
    if (known != nullptr) {
      const double at_known = known->*part / (s.unit.*part);
      if (at_known > most) known = nullptr;
      most = std::clamp(at_known, least, most);
    }
    s.solver->SetColumn(column, 0, most);
    if (again) continue;
    solved_.push_back({least * (1 + kFixed), {}, s.solver->basis()});
    for (const int row : s.capacity_row) {
      solved_.back().prices.push_back(s.solver->Price(row));
    }
  }
  return absl::OkStatus();
}

NodeFractions JointProgram::Fractions() const {
  NodeFractions fractions;
  for (const std::vector<TensorForms>& rank : rows_.tensors) {
    auto& all = fractions.emplace_back();
    for (const TensorForms& tensor : rank) {
      all.push_back(CleanFractions(tensor.swap.At(*rows_.solver),
                                   tensor.recompute.At(*rows_.solver)));
    }
  }
  return fractions;
}

absl::StatusOr<double> JointProgram::LeastExcess(Answer* answer) {
  JointRows& s = rows_;
  SLUICE_ASSIGN_OR_RETURN(const double sum, s.solver->Minimise(s.excess_sum));
  answer->excess.clear();
  for (const int column : s.excess) {
    answer->excess.push_back(std::max(0.0, s.solver->Value(column)));
  }
  return sum;
}

// On links that mandatory copies overload, bounds the rate of each kind by the
// capacity that the peak rates of the other ranks leave, or by its own
// mandatory rate if that is higher.
absl::Status JointProgram::BoundKinds(const Answer& answer) {
  JointRows& s = rows_;
  if (s.kinds_sum == 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(s.solver->Minimise(s.kinds_sum).status());
  const auto most = [&](const JointRows::Rate& rate) {
    if (rate.kinds.empty()) return s.solver->Value(rate.column);
    double most = 0;
    for (const int k : rate.kinds) most = std::max(most, s.solver->Value(k));
    return most;
  };
  std::map<int, double> bounds;
  for (size_t i = 0; i < s.capacities.size(); ++i) {
    const CapacityRow& row = s.capacities[i];
    if (IsMemory(row) || answer.excess[i] < kNoDigits) continue;
    double all = 0;  // bytes/s
    const auto rate_of = [&](size_t r) -> const JointRows::Rate* {
      return Uses(problem_, r, row) ? &s.rates[r].at(row.kind) : nullptr;
    };
    for (size_t r = 0; r < problem_.ranks.size(); ++r) {
      if (const JointRows::Rate* rate = rate_of(r))
        all += most(*rate) * rate->unit;
    }
    for (size_t r = 0; r < problem_.ranks.size(); ++r) {
      const JointRows::Rate* rate = rate_of(r);
      if (rate == nullptr) continue;
      const double left =
          row.capacity / rate->unit - (all / rate->unit - most(*rate));
      for (const int k : rate->kinds) {
        const double must = s.solver->Value(k) * (1 + kFixed) + kNoDigits;
        const double bound = std::max(must, left);
        const auto [at, added] = bounds.emplace(k, bound);
        if (!added) at->second = std::min(at->second, bound);
      }
    }
  }
  for (const auto& [column, bound] : bounds) {
    s.solver->SetColumn(column, 0, bound);
  }
  return absl::OkStatus();
}

absl::StatusOr<JointProgram::Answer> JointProgram::Solve(
    const SwapObjective* known) {
  JointRows& s = rows_;
  Answer answer;
  SLUICE_ASSIGN_OR_RETURN(const double sum, LeastExcess(&answer));
  answer.feasible = answer.in_time = sum <= kNoJointExcess;
  if (!answer.feasible) {
    // Memory is a hard limit, links are not. With the excess of memory fixed at
    // 0, the least excess of links is that of the mandatory copies.
    answer.fractions = Fractions();
    for (size_t i = 0; i < s.excess.size(); ++i) {
      if (IsMemory(s.capacities[i])) s.solver->SetColumn(s.excess[i], 0, 0);
    }
    Answer slow;
    const absl::StatusOr<double> links = LeastExcess(&slow);
    if (absl::IsNotFound(links.status())) return answer;
    if (!links.ok()) return links.status();
    answer.excess = std::move(slow.excess);
    answer.feasible = true;
  }
  for (size_t i = 0; i < s.excess.size(); ++i) {
    const bool digits = answer.excess[i] < kNoDigits;
    s.solver->SetColumn(s.excess[i], 0, digits ? 0 : answer.excess[i]);
  }
  if (!answer.in_time) SLUICE_RETURN_IF_ERROR(BoundKinds(answer));
  SLUICE_RETURN_IF_ERROR(Stages(known));
  answer.fractions = Fractions();
  return answer;
}

absl::StatusOr<NodeFractions> JointProgram::SolveWithStalls(
    const Answer& hidden) {
  JointRows& s = rows_;
  for (size_t i = 0; i < s.excess.size(); ++i) {
    const bool digits = hidden.excess[i] < kNoDigits;
    const bool none = digits || !IsMemory(s.capacities[i]);
    s.solver->SetColumn(s.excess[i], 0, none ? 0 : hidden.excess[i]);
  }
  SLUICE_RETURN_IF_ERROR(Stages(nullptr));
  return Fractions();
}

absl::StatusOr<std::optional<NodeFractions>> JointProgram::SolveWithOneMore(
    size_t row) {
  JointRows& s = rows_;
  size_t first = 0;  // the first objective that may fall
  while (first < solved_.size() && solved_[first].prices[row] < kNoDigits) {
    ++first;
  }
  if (first == solved_.size()) return std::nullopt;
  const int index = s.capacity_row[row];
  const double upper = s.program.rows[static_cast<size_t>(index)].upper;
  const double more = OneMore(s.capacities[row]) / s.row_scale[row];
  s.solver->SetRowUpper(index, upper + more);
  absl::Status solved = Stages(nullptr, first);
  // Rounding may make the bounds of earlier objectives infeasible.
  if (!solved.ok() && first > 0) solved = Stages(nullptr);
  s.solver->SetRowUpper(index, upper);
  SLUICE_RETURN_IF_ERROR(solved);
  return Fractions();
}

}  // namespace sluice::planner
