#include "planner/swap/joint.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "planner/swap/lp.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using Problem = NodeSwapProblem;
using Kind = CapacityRow::Kind;

// A stage's value is fixed within this, relative.
constexpr double kFixed = 1e-9;
// An excess below this, summed over all rows, is digits.
constexpr double kNoExcess = 1e-7;
constexpr double kNoDigits = 1e-11;
// Fractions this near to 0 or 1 are meant to be.
constexpr double kSnap = 1e-9;

// constant + sum of coefficient * column
struct Form {
  double constant = 0;
  std::map<int, double> terms;

  void Add(const Form& other, double weight) {
    constant += weight * other.constant;
    for (const auto& [column, value] : other.terms) {
      terms[column] += weight * value;
    }
  }
  static Form Of(int column) { return {0, {{column, 1}}}; }
  static Form Of(double constant) { return {constant, {}}; }
  double At(const LinearSolver& solver) const {
    double value = constant;
    for (const auto& [column, weight] : terms) {
      value += weight * solver.Value(column);
    }
    return value;
  }
};

struct TensorForms {
  Form swap;
  Form recompute;
  Form Keep() const {
    Form keep = Form::Of(1.0);
    keep.Add(swap, -1);
    keep.Add(recompute, -1);
    return keep;
  }
};

double Snap(double fraction) {
  return fraction < kSnap ? 0 : fraction > 1 - kSnap ? 1 : fraction;
}

plan::TokenFractions Clean(double swap, double recompute) {
  plan::TokenFractions f{.swap = Snap(swap), .recompute = Snap(recompute)};
  const double sum = f.swap + f.recompute;
  if (sum > 1) f.swap /= sum, f.recompute /= sum;
  f.keep = Snap(1 - f.swap - f.recompute);
  if (f.keep == 0 && f.swap + f.recompute < 1) f.recompute = 1 - f.swap;
  return f;
}

}  // namespace

struct JointProgram::State {
  std::vector<CapacityRow> capacities;
  std::vector<std::vector<TensorForms>> tensors;  // rank, tensor
  LinearProgram program;
  // Columns: the sum of excesses, and the three objectives, each in a unit
  // that makes it about 1.
  int excess_sum = 0, step = 0, recompute = 0, moved = 0;
  std::vector<int> excess;        // column of each capacity
  std::vector<int> capacity_row;  // row of each
  std::vector<double> row_scale;  // bytes or bytes/s that are 1 in it
  // What 1 is of step, recompute and moved.
  SwapObjective unit;
  std::unique_ptr<LinearSolver> solver;
};

// Writes the rows.
class JointProgram::Build {
 public:
  Build(const Problem& problem, State* state)
      : problem_(problem), s_(*state), program_(state->program) {
    s_.capacities = CapacitiesOf(problem);
    rates_.resize(problem.ranks.size());
    for (const Problem::Rank& rank : problem.ranks) AddTensors(rank);
    for (size_t r = 0; r < problem.ranks.size(); ++r) AddRates(r);
    for (const CapacityRow& row : s_.capacities) AddCapacity(row);
    AddObjectives();
    s_.solver = std::make_unique<LinearSolver>(program_);
  }

 private:
  // A rank's copies a second on its links, in units of the slowest of them.
  struct Rate {
    int column = -1;
    double unit = 0;
  };

  // The three fractions of every tensor; what has no choice has no column.
  void AddTensors(const Problem::Rank& rank) {
    std::vector<TensorForms> all;
    for (const Problem::Tensor& tensor : rank.tensors) {
      TensorForms forms;
      if (tensor.must == Problem::Must::kSwap) {
        forms.swap = Form::Of(1.0);
      } else if (tensor.must == Problem::Must::kRecompute) {
        forms.recompute = Form::Of(1.0);
      } else if (tensor.must == Problem::Must::kNothing) {
        forms = tensor.shared.empty() ? Free(tensor) : Shared(tensor);
      }
      all.push_back(std::move(forms));
    }
    s_.tensors.push_back(std::move(all));
  }

  TensorForms Shared(const Problem::Tensor& tensor) {
    const auto found = shared_.find(tensor.shared);
    if (found != shared_.end()) return found->second;
    return shared_[tensor.shared] = Free(tensor);
  }

  TensorForms Free(const Problem::Tensor& tensor) {
    const double room = 1 - tensor.given.keep.value_or(0);
    const bool keeps = tensor.can_keep && !tensor.given.keep;
    TensorForms forms;
    if (tensor.given.swap) {
      forms.swap = Form::Of(*tensor.given.swap);
    } else if (!keeps && !tensor.recompute_s) {
      forms.swap = Form::Of(room);
    } else {
      forms.swap = Form::Of(program_.AddColumn({0, room}));
    }
    if (!tensor.recompute_s) return forms;
    if (!keeps) {
      forms.recompute = Form::Of(room);
      forms.recompute.Add(forms.swap, -1);
      return forms;
    }
    const int recompute = program_.AddColumn({0, room});
    forms.recompute = Form::Of(recompute);
    Form sum = forms.swap;
    sum.Add(forms.recompute, 1);
    program_.AddRow({.upper = room - sum.constant, .terms = Terms(sum)});
    return forms;
  }

  enum Counted { kCopied, kSwapped, kKept, kSeconds };
  // Of a layer of rank r.
  Form LayerForm(size_t r, Counted counted) const {
    Form sum;
    const Problem::Rank& rank = problem_.ranks[r];
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const Problem::Tensor& tensor = rank.tensors[t];
      const TensorForms& forms = s_.tensors[r][t];
      if (counted == kKept) {
        sum.Add(forms.Keep(), tensor.bytes);
      } else if (counted == kSeconds) {
        sum.Add(forms.recompute, tensor.recompute_s.value_or(0));
      } else if (counted == kSwapped || !tensor.traffic_in_fixed) {
        sum.Add(forms.swap, tensor.bytes);
      }
    }
    return sum;
  }

  // lower <= form, of which the constant goes to the other side.
  void AtLeast(Form form, double lower) {
    program_.AddRow({.lower = lower - form.constant, .terms = Terms(form)});
  }
  static std::vector<std::pair<int, double>> Terms(const Form& form) {
    std::vector<std::pair<int, double>> terms;
    for (const auto& [column, value] : form.terms) {
      if (value != 0) terms.emplace_back(column, value);
    }
    return terms;
  }

  // D_r, H_r and U_r: columns that are at least what either pass needs.
  void AddRates(size_t r) {
    const Problem::Rank& rank = problem_.ranks[r];
    const Form copied = LayerForm(r, kCopied);
    const double ff = rank.forward_d2h_fixed_bytes;
    const double fh = rank.forward_h2d_fixed_bytes;
    const double bf = rank.backward_d2h_fixed_bytes;
    const double bh = rank.backward_h2d_fixed_bytes;
    const auto pass = [&copied](double moved, double fixed, double window) {
      Form form = Form::Of(fixed / window);
      form.Add(copied, moved / window);
      return form;
    };
    const double tf = rank.forward_layer_s;
    const double tb = rank.backward_layer_s;
    AddRate(r, Kind::kLinkD2h, {pass(1, ff, tf), pass(0, bf, tb)});
    AddRate(r, Kind::kLinkH2d, {pass(0, fh, tf), pass(1, bh, tb)});
    AddRate(r, Kind::kLinkTotal, {pass(1, ff + fh, tf), pass(1, bf + bh, tb)});
  }

  void AddRate(size_t r, Kind kind, const std::vector<Form>& passes) {
    Rate rate;
    for (const CapacityRow& row : s_.capacities) {
      if (row.kind != kind) continue;
      if (!IsOn(problem_.ranks[r], problem_.links[row.index].name)) continue;
      rate.unit =
          rate.unit == 0 ? row.capacity : std::min(rate.unit, row.capacity);
    }
    if (rate.unit == 0) return;  // no such link limits it
    rate.column = program_.AddColumn({});
    for (const Form& pass : passes) {
      Form room = Form::Of(rate.column);
      room.Add(pass, -1 / rate.unit);
      AtLeast(std::move(room), 0);
    }
    rates_[r][kind] = rate;
  }

  Form UseOf(const CapacityRow& row) const {
    Form used;
    for (size_t r = 0; r < problem_.ranks.size(); ++r) {
      const Problem::Rank& rank = problem_.ranks[r];
      if (row.kind == Kind::kHost) {
        if (rank.numa != problem_.numa[row.index].id) continue;
        used.Add(LayerForm(r, kSwapped), MovingLayers(rank));
        used.constant += rank.host_fixed_bytes;
      } else if (row.kind == Kind::kLimit) {
        if (!IsIn(rank, problem_.hosts[row.index].name)) continue;
        used.Add(LayerForm(r, kSwapped), MovingLayers(rank));
        used.constant += rank.host_fixed_bytes;
      } else if (row.kind == Kind::kGpu) {
        if (r == row.index) used.Add(LayerForm(r, kKept), MovingLayers(rank));
      } else if (IsOn(rank, problem_.links[row.index].name)) {
        const Rate& rate = rates_[r].at(row.kind);
        used.Add(Form::Of(rate.column), rate.unit);
      }
    }
    return used;
  }

  // used <= capacity + excess * unit
  void AddCapacity(const CapacityRow& row) {
    const double unit = UnitOf(row);
    Form form;
    form.Add(UseOf(row), 1 / unit);
    const int excess = program_.AddColumn({});
    form.Add(Form::Of(excess), -1);
    s_.excess.push_back(excess);
    s_.row_scale.push_back(unit);
    s_.capacity_row.push_back(program_.AddRow(
        {.upper = row.capacity / unit - form.constant, .terms = Terms(form)}));
  }

  // The column that is at least a form in units of `unit`.
  int AddTotal(const Form& form, double unit) {
    const int column = program_.AddColumn({});
    Form room = Form::Of(column);
    room.Add(form, -1 / unit);
    AtLeast(std::move(room), 0);
    return column;
  }

  void AddObjectives() {
    double slowest = 0, all_seconds = 0, all_bytes = 0;
    for (const Problem::Rank& rank : problem_.ranks) {
      const double window = rank.forward_layer_s + rank.backward_layer_s;
      slowest = std::max(slowest, static_cast<double>(rank.layers) * window);
      for (const Problem::Tensor& tensor : rank.tensors) {
        const double m = MovingLayers(rank);
        all_seconds += m * tensor.recompute_s.value_or(0);
        all_bytes += 2 * m * tensor.bytes;
      }
    }
    s_.step = program_.AddColumn({});
    Form recompute, moved, excess;
    for (size_t r = 0; r < problem_.ranks.size(); ++r) {
      const Problem::Rank& rank = problem_.ranks[r];
      const double m = MovingLayers(rank);
      const double window = rank.forward_layer_s + rank.backward_layer_s;
      const Form seconds = LayerForm(r, kSeconds);
      Form room = Form::Of(s_.step);
      room.constant -= static_cast<double>(rank.layers) * window / slowest;
      room.Add(seconds, -m / slowest);
      AtLeast(std::move(room), 0);
      recompute.Add(seconds, m);
      moved.Add(LayerForm(r, kCopied), 2 * m);
    }
    for (const int column : s_.excess) excess.Add(Form::Of(column), 1);
    s_.unit = {.step_s = slowest,
               .recompute_s = all_seconds > 0 ? all_seconds : 1,
               .moved_bytes = all_bytes > 0 ? all_bytes : 1};
    s_.recompute = AddTotal(recompute, s_.unit.recompute_s);
    s_.moved = AddTotal(moved, s_.unit.moved_bytes);
    s_.excess_sum = AddTotal(excess, 1);
  }

  const Problem& problem_;
  State& s_;
  LinearProgram& program_;
  std::map<std::string, TensorForms> shared_;
  std::vector<std::map<Kind, Rate>> rates_;
};

JointProgram::JointProgram(const Problem& problem)
    : problem_(problem), state_(std::make_unique<State>()) {
  Build(problem, state_.get());
}

JointProgram::~JointProgram() = default;

// One objective after the other, each kept at what it came to. Within that
// 1e-9 a later objective may gain; never past `known`, a plan that is as good
// so far, so that the answer is not behind it by a digit.
absl::Status JointProgram::Stages(const SwapObjective* known) {
  State& s = *state_;
  const std::pair<int, double SwapObjective::*> objectives[] = {
      {s.step, &SwapObjective::step_s},
      {s.recompute, &SwapObjective::recompute_s},
      {s.moved, &SwapObjective::moved_bytes}};
  for (const auto& [column, part] : objectives) {
    s.solver->SetColumn(column, 0, kUnbounded);
  }
  for (const auto& [column, part] : objectives) {
    SLUICE_ASSIGN_OR_RETURN(double least, s.solver->Minimise(column));
    least = std::max(least, 0.0);
    double most = least * (1 + kFixed);
    if (known != nullptr) {
      const double at_known = known->*part / (s.unit.*part);
      if (at_known > most) known = nullptr;
      most = std::clamp(at_known, least, most);
    }
    s.solver->SetColumn(column, 0, most);
  }
  return absl::OkStatus();
}

NodeFractions JointProgram::Fractions() const {
  NodeFractions fractions;
  for (const std::vector<TensorForms>& rank : state_->tensors) {
    std::vector<plan::TokenFractions>& all = fractions.emplace_back();
    for (const TensorForms& tensor : rank) {
      all.push_back(Clean(tensor.swap.At(*state_->solver),
                          tensor.recompute.At(*state_->solver)));
    }
  }
  return fractions;
}

absl::StatusOr<double> JointProgram::LeastExcess(Answer* answer) {
  State& s = *state_;
  SLUICE_ASSIGN_OR_RETURN(const double sum, s.solver->Minimise(s.excess_sum));
  answer->excess.clear();
  for (const int column : s.excess) {
    answer->excess.push_back(std::max(0.0, s.solver->Value(column)));
  }
  return sum;
}

absl::StatusOr<JointProgram::Answer> JointProgram::Solve(
    const SwapObjective* known) {
  State& s = *state_;
  Answer answer;
  SLUICE_ASSIGN_OR_RETURN(const double sum, LeastExcess(&answer));
  answer.feasible = answer.in_time = sum <= kNoExcess;
  if (!answer.feasible) {
    // Memory is a wall, a link is not: without an excess of memory, the least
    // of the links is what must be copied.
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
  SLUICE_RETURN_IF_ERROR(Stages(known));
  answer.fractions = Fractions();
  return answer;
}

absl::StatusOr<SwapObjective> JointProgram::SolveWithOneMore(size_t row) {
  State& s = *state_;
  const int index = s.capacity_row[row];
  const double upper = s.program.rows[static_cast<size_t>(index)].upper;
  const double more = OneMore(s.capacities[row]) / s.row_scale[row];
  s.solver->SetRowUpper(index, upper + more);
  const absl::Status solved = Stages(nullptr);
  s.solver->SetRowUpper(index, upper);
  SLUICE_RETURN_IF_ERROR(solved);
  return ObjectiveOf(problem_, Fractions());
}

}  // namespace sluice::planner
