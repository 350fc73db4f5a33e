// The columns and rows of the LP.
#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/swap/joint.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;
using RowKind = CapacityRow::Kind;
using Direction = CapacityRow::Kind;  // of a link

class RowWriter {
 public:
  RowWriter(const SwapProblem& problem, bool stalls, JointRows* rows)
      : problem_(problem), stalls_(stalls), s_(*rows), program_(rows->program) {
    s_.capacities = CapacitiesOf(problem);
    s_.rates.resize(problem.ranks.size());
    for (const SwapProblem::Rank& rank : problem.ranks)
      if_swapped_.push_back(RatesIfSwapped(rank));
    for (const SwapProblem::Rank& rank : problem.ranks) AddTensors(rank);
    for (size_t r = 0; r < problem.ranks.size(); ++r) {
      AddRates(r);
      swapped_.push_back(AsColumn(RankForm(r, kSwapped)));
    }
    for (const CapacityRow& row : s_.capacities) AddCapacity(row);
    AddObjectives();
    s_.solver = std::make_unique<LinearSolver>(program_);
  }

 private:
  // Only open fractions get a column.
  void AddTensors(const SwapProblem::Rank& rank) {
    std::vector<TensorForms> all;
    for (const SwapProblem::Tensor& tensor : rank.tensors) {
      TensorForms forms;
      if (tensor.must == SwapProblem::Must::kSwap) {
        forms.swap = Form::Of(1.0);
      } else if (tensor.must == SwapProblem::Must::kRecompute) {
        forms.recompute = Form::Of(1.0);
      } else if (tensor.must == SwapProblem::Must::kNothing) {
        forms = tensor.shared.empty() ? Free(tensor) : Shared(tensor);
      }
      all.push_back(std::move(forms));
    }
    s_.tensors.push_back(std::move(all));
  }

  TensorForms Shared(const SwapProblem::Tensor& tensor) {
    const auto found = shared_.find(tensor.shared);
    if (found != shared_.end()) return found->second;
    return shared_[tensor.shared] = Free(tensor);
  }

  TensorForms Free(const SwapProblem::Tensor& tensor) {
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
  // Returns the bytes or seconds of all moving layers of rank r.
  Form RankForm(size_t r, Counted counted) const {
    Form sum;
    const SwapProblem::Rank& rank = problem_.ranks[r];
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const SwapProblem::Tensor& tensor = rank.tensors[t];
      const TensorForms& forms = s_.tensors[r][t];
      const double m = MovingLayers(rank, tensor);
      if (counted == kKept) {
        Form keep = Form::Of(1.0);
        keep.Add(forms.swap, -1);
        keep.Add(forms.recompute, -1);
        sum.Add(keep, m * tensor.bytes);
      } else if (counted == kSeconds) {
        sum.Add(forms.recompute, m * tensor.recompute_s.value_or(0));
      } else if (counted == kSwapped || !tensor.traffic_in_fixed) {
        sum.Add(forms.swap, m * tensor.bytes);
      }
    }
    return sum;
  }

  // Returns the bytes that one layer of kind k of rank r swaps in addition to
  // its fixed traffic.
  Form CopiedForm(size_t r, size_t k) const {
    Form sum;
    const SwapProblem::Rank& rank = problem_.ranks[r];
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const SwapProblem::Tensor& tensor = rank.tensors[t];
      if (tensor.kind != k || tensor.traffic_in_fixed) continue;
      sum.Add(s_.tensors[r][t].swap, tensor.bytes);
    }
    return sum;
  }

  // Returns one column that is at least `form`, so that rows over many ranks
  // have one term per rank: factorising a basis takes Clp time quadratic in the
  // longest row.
  Form AsColumn(Form form) {
    double unit = std::fabs(form.constant);
    for (const auto& [column, value] : form.terms) unit += std::fabs(value);
    if (form.terms.size() < 2 || unit == 0) return form;
    return {0, {{AddTotal(form, unit), unit}}};
  }

  // Adds the constraint lower <= form.
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

  // The rates that the two passes of a kind need in one direction.
  using Passes = std::vector<Form>;
  static std::map<RowKind, Passes> PassesOf(const SwapProblem::Kind& kind,
                                            const Form& copied) {
    const auto [f, b] = PassBytes(kind, 0);  // fixed
    const auto pass = [&copied](double moved, double fixed, double window) {
      // A pass without a window copies nothing.
      if (window <= 0) return Form{};
      Form form = Form::Of(fixed / window);
      form.Add(copied, moved / window);
      return form;
    };
    const double tf = kind.forward_layer_s;
    const double tb = kind.backward_layer_s;
    return {
        {Direction::kLinkD2h, {pass(1, f.d2h, tf), pass(0, b.d2h, tb)}},
        {Direction::kLinkH2d, {pass(0, f.h2d, tf), pass(1, b.h2d, tb)}},
        {Direction::kLinkTotal, {pass(1, f.total, tf), pass(1, b.total, tb)}}};
  }

  // Adds README.md's columns D_r, H_r and U_r.
  void AddRates(size_t r) {
    const SwapProblem::Rank& rank = problem_.ranks[r];
    waits_.emplace_back();
    for (size_t k = 0; k < rank.kinds.size(); ++k) {
      const std::vector<double> windows = {rank.kinds[k].forward_layer_s,
                                           rank.kinds[k].backward_layer_s};
      std::vector<int> waits;
      for (size_t pass = 0; pass < windows.size(); ++pass) {
        waits.push_back(program_.AddColumn({0, stalls_ ? kUnbounded : 0}));
        const int64_t m = rank.kinds[k].layers - rank.kinds[k].resident_layers;
        waits_[r].Add(Form::Of(waits.back()),
                      static_cast<double>(std::max<int64_t>(m, 1)));
      }
      for (auto& [direction, passes] :
           PassesOf(rank.kinds[k], AsColumn(CopiedForm(r, k)))) {
        for (size_t pass = 0; pass < waits.size(); ++pass) {
          if (windows[pass] <= 0) continue;
          passes[pass].Add(Form::Of(waits[pass]),
                           -WaitRate(r, direction) / windows[pass]);
        }
        AddRate(r, direction, passes);
      }
    }
  }

  // Returns the bytes that rank r copies per second of waiting: its share of
  // its slowest link, in proportion to what the ranks on the link would copy if
  // everything were swapped.
  double WaitRate(size_t r, Direction direction) const {
    double rate = kUnbounded;
    for (const CapacityRow& row : s_.capacities) {
      if (row.kind != direction || !Uses(problem_, r, row)) continue;
      double all = 0;
      for (size_t other = 0; other < problem_.ranks.size(); ++other) {
        if (!Uses(problem_, other, row)) continue;
        all += RateOf(if_swapped_[other], row);
      }
      const double own = RateOf(if_swapped_[r], row);
      rate = std::min(rate, all > 0 ? row.capacity * own / all : 0);
    }
    return rate < kUnbounded ? rate : 0;
  }

  // Returns the capacity of the rank's slowest link, or 0 if no link limits it.
  double RateUnit(size_t r, Direction direction) const {
    double unit = 0;
    for (const CapacityRow& row : s_.capacities) {
      if (row.kind != direction || !Uses(problem_, r, row)) continue;
      unit = unit == 0 ? row.capacity : std::min(unit, row.capacity);
    }
    return unit;
  }

  void AddRate(size_t r, Direction direction, const Passes& passes) {
    const double unit = RateUnit(r, direction);
    if (unit == 0) return;
    JointRows::Rate& rate = s_.rates[r][direction];
    if (rate.column < 0) rate = {program_.AddColumn({}), unit, {}};
    int column = rate.column;
    if (problem_.ranks[r].kinds.size() > 1) {
      column = program_.AddColumn({});
      rate.kinds.push_back(column);
      Form room = Form::Of(rate.column);
      room.Add(Form::Of(column), -1);
      AtLeast(std::move(room), 0);
    }
    for (const Form& pass : passes) {
      Form room = Form::Of(column);
      room.Add(pass, -1 / unit);
      AtLeast(std::move(room), 0);
    }
  }

  Form UseOf(const CapacityRow& row) const {
    Form used;
    for (size_t r = 0; r < problem_.ranks.size(); ++r) {
      if (!Uses(problem_, r, row)) continue;
      if (row.kind == RowKind::kGpu) {
        used.Add(RankForm(r, kKept), 1);
      } else if (IsMemory(row)) {
        used.Add(swapped_[r], 1);
        used.constant += problem_.ranks[r].host_fixed_bytes;
      } else {
        const JointRows::Rate& rate = s_.rates[r].at(row.kind);
        used.Add(Form::Of(rate.column), rate.unit);
      }
    }
    return used;
  }

  // Adds the row used <= capacity + excess * unit.
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

  // Returns a new column; its value times `unit` is at least `form`.
  int AddTotal(const Form& form, double unit) {
    const int column = program_.AddColumn({});
    Form room = Form::Of(column);
    room.Add(form, -1 / unit);
    AtLeast(std::move(room), 0);
    return column;
  }

  void AddObjectives() {
    double slowest = 0, all_seconds = 0, all_bytes = 0;
    for (const SwapProblem::Rank& rank : problem_.ranks) {
      slowest = std::max(slowest, WindowSeconds(rank));
      for (const SwapProblem::Tensor& tensor : rank.tensors) {
        const double m = MovingLayers(rank, tensor);
        all_seconds += m * tensor.recompute_s.value_or(0);
        all_bytes += 2 * m * tensor.bytes;
      }
    }
    if (slowest <= 0) slowest = 1;
    s_.step = program_.AddColumn({});
    Form recompute, moved, excess, kinds;
    for (size_t r = 0; r < problem_.ranks.size(); ++r) {
      const SwapProblem::Rank& rank = problem_.ranks[r];
      const Form seconds = AsColumn(RankForm(r, kSeconds));
      Form room = Form::Of(s_.step);
      room.constant -= WindowSeconds(rank) / slowest;
      room.Add(seconds, -1 / slowest);
      room.Add(waits_[r], -1 / slowest);
      AtLeast(std::move(room), 0);
      recompute.Add(seconds, 1);
      recompute.Add(waits_[r], 1);
      moved.Add(AsColumn(RankForm(r, kCopied)), 2);
      for (const auto& [direction, rate] : s_.rates[r]) {
        for (const int column : rate.kinds) kinds.Add(Form::Of(column), 1);
      }
    }
    for (const int column : s_.excess) excess.Add(Form::Of(column), 1);
    s_.unit = {.step_s = slowest,
               .recompute_s = all_seconds > 0 ? all_seconds : 1,
               .moved_bytes = all_bytes > 0 ? all_bytes : 1};
    s_.recompute = AddTotal(recompute, s_.unit.recompute_s);
    s_.moved = AddTotal(moved, s_.unit.moved_bytes);
    s_.excess_sum = AddTotal(excess, 1);
    if (!kinds.terms.empty()) s_.kinds_sum = AddTotal(kinds, 1);
  }

  const SwapProblem& problem_;
  const bool stalls_;
  JointRows& s_;
  LinearProgram& program_;
  std::map<std::string, TensorForms> shared_;
  std::vector<CopyRates> if_swapped_;  // one per rank
  std::vector<Form> swapped_;          // one per rank, in bytes
  std::vector<Form> waits_;            // one per rank, in seconds of a step
};

}  // namespace

JointRows MakeJointRows(const SwapProblem& problem, bool stalls) {
  JointRows rows;
  RowWriter(problem, stalls, &rows);
  return rows;
}

}  // namespace sluice::planner
