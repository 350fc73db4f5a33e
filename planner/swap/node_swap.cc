#include "planner/swap/node_swap.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "planner/swap/joint.h"
#include "planner/swap/swap_accounting.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;

// An excess, or a relative difference of steps, below this is rounding.
constexpr double kNoNodeExcess = 1e-9;
// StepWithStalls is an estimate, so exposing copies must gain at least this
// part of the step.
constexpr double kWorthStalling = 0.01;

// Returns the indices of `items` in the order of their keys.
template <typename Item, typename Key>
std::vector<size_t> OrderOf(const std::vector<Item>& items, Key Item::*key) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return items[i].*key; });
  return order;
}

template <typename Item>
std::vector<Item> Picked(const std::vector<Item>& items,
                         const std::vector<size_t>& order) {
  std::vector<Item> picked;
  for (const size_t i : order) picked.push_back(items[i]);
  return picked;
}

// The problem sorted by names, because the order of columns determines which
// one of many optima Clp finds.
struct Canonical {
  // Indices in the caller's problem.
  std::vector<size_t> links, numa, hosts, ranks;
  SwapProblem problem;

  explicit Canonical(const SwapProblem& given)
      : links(OrderOf(given.links, &SwapProblem::Link::name)),
        numa(OrderOf(given.numa, &SwapProblem::Numa::id)),
        hosts(OrderOf(given.hosts, &SwapProblem::Host::name)),
        ranks(OrderOf(given.ranks, &SwapProblem::Rank::name)),
        problem{Picked(given.links, links), Picked(given.numa, numa),
                Picked(given.hosts, hosts), Picked(given.ranks, ranks)} {}

  size_t Given(const CapacityRow& row) const {
    switch (row.kind) {
      case CapacityRow::Kind::kHost:
        return numa[row.index];
      case CapacityRow::Kind::kLimit:
        return hosts[row.index];
      case CapacityRow::Kind::kGpu:
        return ranks[row.index];
      default:
        return links[row.index];
    }
  }
};

bool NotWorse(const SwapObjective& a, const SwapObjective& b) {
  return a.step_s <= b.step_s && a.recompute_s <= b.recompute_s &&
         a.moved_bytes <= b.moved_bytes;
}

SwapObjective Fall(const SwapObjective& from, const SwapObjective& to) {
  return {from.step_s - to.step_s, from.recompute_s - to.recompute_s,
          from.moved_bytes - to.moved_bytes};
}

// Returns whether `stalls` slows down no rank and speeds up the slowest.
bool IsWorthStalling(const SwapProblem& problem, const NodeFractions& hidden,
                     const NodeFractions& stalls) {
  const std::vector<RankSwap> before = RanksOf(problem, hidden);
  const std::vector<RankSwap> after = RanksOf(problem, stalls);
  for (size_t r = 0; r < after.size(); ++r) {
    if (after[r].step_s + after[r].stall_s >
        (before[r].step_s + before[r].stall_s) * (1 + kNoNodeExcess)) {
      return false;
    }
  }
  return StepWithStalls(problem, stalls) <
         StepWithStalls(problem, hidden) * (1 - kWorthStalling);
}

// With `stalls`, the step includes waits for copies.
SwapObjective PricedObjective(const SwapProblem& problem,
                              const NodeFractions& fractions, bool stalls) {
  SwapObjective objective = ObjectiveOf(problem, fractions);
  if (stalls) objective.step_s = StepWithStalls(problem, fractions);
  return objective;
}

// Sets one_more of full rows; more capacity of another row does not change the
// LP's optimum. With `stalls`, the objectives of `program` include stalls.
absl::Status BuyJoint(const SwapProblem& problem,
                      const NodeFractions& fractions, bool stalls,
                      JointProgram* program, std::vector<CapacityRow>* rows) {
  const SwapObjective now = PricedObjective(problem, fractions, stalls);
  for (size_t i = 0; i < rows->size(); ++i) {
    CapacityRow& row = (*rows)[i];
    if (!row.binds) continue;
    if (row.excess > 0) {
      // More capacity of an overloaded link only shortens exposed copies.
      const SwapProblem more = WithOneMore(problem, row);
      row.one_more.step_s =
          StepWithStalls(problem, fractions) - StepWithStalls(more, fractions);
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const std::optional<NodeFractions> then,
                            program->SolveWithOneMore(i));
    if (then) row.one_more = Fall(now, PricedObjective(problem, *then, stalls));
  }
  return absl::OkStatus();
}

// Sets one_more of all rows: a rank's part of a capacity can limit its alpha
// even if the row is not full.
void BuyMemo(const SwapProblem& problem, const SwapObjective& now,
             std::vector<CapacityRow>* rows) {
  for (CapacityRow& row : *rows) {
    const SwapProblem more = WithOneMore(problem, row);
    row.one_more = Fall(now, ObjectiveOf(more, PlanMemo(more).fractions));
  }
}

class Planner {
 public:
  Planner(const SwapProblem& problem, SwapPolicy policy)
      : problem_(problem), policy_(policy) {}

  absl::StatusOr<NodeSwapResult> Plan() {
    const MemoPlan memo = PlanMemo(problem_);
    result_.no_memo = memo.refusal;
    if (memo.refusal.empty()) {
      result_.memo = {ObjectiveOf(problem_, memo.fractions), memo.alpha};
    }
    JointProgram program(problem_);
    SLUICE_ASSIGN_OR_RETURN(
        JointProgram::Answer joint,
        program.Solve(result_.memo ? &result_.memo->objective : nullptr));
    if (joint.feasible) {
      result_.joint = ObjectiveOf(problem_, joint.fractions);
      // If MEMO's plan is as good, it is used, because it is simpler.
      if (result_.memo && NotWorse(result_.memo->objective, *result_.joint)) {
        result_.joint = result_.memo->objective;
        joint.fractions = memo.fractions;
      }
    }
    result_.rows = CapacitiesOf(problem_);
    if (policy_ == SwapPolicy::kMemo) {
      SLUICE_RETURN_IF_ERROR(FillMemo(memo));
      return std::move(result_);
    }
    std::unique_ptr<JointProgram> stalls;
    if (policy_ == SwapPolicy::kJoint) {
      SLUICE_ASSIGN_OR_RETURN(stalls, Stall(program, &joint));
    }
    SLUICE_RETURN_IF_ERROR(
        FillJoint(joint, stalls != nullptr ? stalls.get() : &program));
    return std::move(result_);
  }

 private:
  // If a plan with exposed copies is faster, stores it in `joint` and returns
  // its program; else returns null.
  absl::StatusOr<std::unique_ptr<JointProgram>> Stall(
      const JointProgram& hidden, JointProgram::Answer* joint) {
    if (!joint->feasible || result_.joint->recompute_s == 0) return nullptr;
    auto program = std::make_unique<JointProgram>(problem_, &hidden);
    absl::StatusOr<NodeFractions> stalls = program->SolveWithStalls(*joint);
    if (absl::IsNotFound(stalls.status())) return nullptr;
    SLUICE_RETURN_IF_ERROR(stalls.status());
    if (!IsWorthStalling(problem_, joint->fractions, *stalls)) return nullptr;
    result_.hidden_step_s = StepWithStalls(problem_, joint->fractions);
    joint->fractions = *std::move(stalls);
    joint->in_time = false;
    result_.joint = ObjectiveOf(problem_, joint->fractions);
    return program;
  }

  absl::Status FillJoint(const JointProgram::Answer& joint,
                         JointProgram* program) {
    Use(problem_, joint.fractions, &result_.rows);
    result_.feasible = joint.feasible;
    for (size_t i = 0; i < result_.rows.size() && !joint.in_time; ++i) {
      CapacityRow& row = result_.rows[i];
      const double excess = result_.hidden_step_s && !IsMemory(row)
                                ? row.used / row.capacity - 1
                                : joint.excess[i];
      row.excess = excess < kNoNodeExcess ? 0 : excess;
    }
    if (!joint.feasible) return absl::OkStatus();
    result_.ranks = RanksOf(problem_, joint.fractions);
    result_.in_time = joint.in_time;
    if (!joint.in_time) {
      result_.stall_s =
          StepWithStalls(problem_, joint.fractions) - result_.joint->step_s;
    }
    return BuyJoint(problem_, joint.fractions,
                    result_.hidden_step_s.has_value(), program, &result_.rows);
  }

  absl::Status FillMemo(const MemoPlan& memo) {
    result_.feasible = memo.refusal.empty();
    if (!result_.feasible) return absl::OkStatus();
    Use(problem_, memo.fractions, &result_.rows);
    result_.ranks = RanksOf(problem_, memo.fractions);
    BuyMemo(problem_, result_.memo->objective, &result_.rows);
    return absl::OkStatus();
  }

  const SwapProblem& problem_;
  const SwapPolicy policy_;
  NodeSwapResult result_;
};

// Puts a result into the caller's order.
void PutBack(const Canonical& canonical, const SwapProblem& given,
             NodeSwapResult* result) {
  const auto put = [&canonical](auto* values) {
    auto moved = *values;
    for (size_t i = 0; i < values->size(); ++i) {
      moved[canonical.ranks[i]] = std::move((*values)[i]);
    }
    *values = std::move(moved);
  };
  put(&result->ranks);
  if (result->memo) put(&result->memo->alpha);
  std::vector<CapacityRow> rows = CapacitiesOf(given);
  for (CapacityRow& to : rows) {
    for (const CapacityRow& from : result->rows) {
      if (from.kind != to.kind || canonical.Given(from) != to.index) continue;
      const size_t index = to.index;
      to = from;
      to.index = index;
      break;
    }
  }
  result->rows = std::move(rows);
}

}  // namespace

absl::StatusOr<NodeSwapResult> PlanNodeSwap(const SwapProblem& problem,
                                            SwapPolicy policy) {
  SLUICE_RETURN_IF_ERROR(CheckNodeSwap(problem));
  const Canonical canonical(problem);
  SLUICE_ASSIGN_OR_RETURN(NodeSwapResult result,
                          Planner(canonical.problem, policy).Plan());
  PutBack(canonical, problem, &result);
  return result;
}

}  // namespace sluice::planner
