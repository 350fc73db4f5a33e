// Solves a node's LP with GLPK. The LP is written independently of the planner:
// it eliminates no columns, and shares no scaling and no code.
#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/planner/swap/nodes.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;

constexpr double kGiga = 1e9;  // bytes are counted in GB

class Glpk {
 public:
  explicit Glpk(const SwapProblem& problem) : problem_(problem) {
    glp_term_out(GLP_OFF);
    lp_ = glp_create_prob();
    glp_set_obj_dir(lp_, GLP_MIN);
    step_ = Column(0);
    recompute_ = Column(0);
    moved_ = Column(0);
    excess_ = Column(0);
    for (const SwapProblem::Rank& rank : problem_.ranks) AddRank(rank);
    AddLinks();
    AddMemory();
    AddObjectives();
    std::vector<int> row{0}, column{0};
    std::vector<double> value{0};
    for (const Entry& e : entries_) {
      row.push_back(e.row), column.push_back(e.column);
      value.push_back(e.value);
    }
    glp_load_matrix(lp_, static_cast<int>(entries_.size()), row.data(),
                    column.data(), value.data());
    glp_scale_prob(lp_, GLP_SF_AUTO);
  }
  ~Glpk() { glp_delete_prob(lp_); }

  Reference Solve() {
    Reference answer;
    answer.excess = Minimise(excess_);
    answer.feasible = answer.excess < 1e-7;
    if (!answer.feasible) return answer;
    for (const int e : excesses_) glp_set_col_bnds(lp_, e, GLP_FX, 0, 0);
    answer.objective.step_s = Minimise(step_);
    Fix(step_, answer.objective.step_s);
    answer.objective.recompute_s = Minimise(recompute_);
    Fix(recompute_, answer.objective.recompute_s);
    answer.objective.moved_bytes = Minimise(moved_) * kGiga;
    return answer;
  }

 private:
  struct Entry {
    int row, column;
    double value;
  };
  struct Own {  // columns of a rank
    std::vector<int> keep, swap, recompute;
    int d2h, h2d, total;
  };

  int Column(double low) {
    const int j = glp_add_cols(lp_, 1);
    glp_set_col_bnds(lp_, j, GLP_LO, low, 0);
    return j;
  }
  int Fraction(bool allowed, bool must) {
    const int j = Column(0);
    if (must) {
      glp_set_col_bnds(lp_, j, GLP_FX, 1, 1);
    } else if (!allowed) {
      glp_set_col_bnds(lp_, j, GLP_FX, 0, 0);
    }
    return j;
  }
  void Give(int column, double value) {
    glp_set_col_bnds(lp_, column, GLP_FX, value, value);
  }
  // Makes the last tensor's columns equal to those of the first tensor with
  // this shared name.
  void Share(const std::string& name, const Own& own) {
    const std::pair<int, int> mine{own.keep.back(), own.swap.back()};
    const auto [first, added] = shared_.emplace(name, mine);
    if (added) return;
    for (const auto& [a, b] : {std::pair(first->second.first, mine.first),
                               std::pair(first->second.second, mine.second)}) {
      const int row = glp_add_rows(lp_, 1);
      glp_set_row_bnds(lp_, row, GLP_FX, 0, 0);
      Put(row, a, 1);
      Put(row, b, -1);
    }
  }
  int RowAtMost(double upper) {
    const int i = glp_add_rows(lp_, 1);
    glp_set_row_bnds(lp_, i, GLP_UP, 0, upper);
    return i;
  }
  int RowAtLeast(double lower) {
    const int i = glp_add_rows(lp_, 1);
    glp_set_row_bnds(lp_, i, GLP_LO, lower, 0);
    return i;
  }
  void Put(int row, int column, double value) {
    entries_.push_back({row, column, value});
  }

  void AddRank(const SwapProblem::Rank& rank) {
    Own own;
    using Must = SwapProblem::Must;
    for (const SwapProblem::Tensor& t : rank.tensors) {
      own.keep.push_back(
          Fraction(t.can_keep || t.must == Must::kKeep, t.must == Must::kKeep));
      own.swap.push_back(Fraction(true, t.must == Must::kSwap));
      if (t.must == Must::kNothing) {
        if (t.given.keep) Give(own.keep.back(), *t.given.keep);
        if (t.given.swap) Give(own.swap.back(), *t.given.swap);
        if (!t.shared.empty()) Share(t.shared, own);
      }
      own.recompute.push_back(
          Fraction(t.recompute_s.has_value(), t.must == Must::kRecompute));
      const int sum = glp_add_rows(lp_, 1);
      glp_set_row_bnds(lp_, sum, GLP_FX, 1, 1);
      Put(sum, own.keep.back(), 1);
      Put(sum, own.swap.back(), 1);
      Put(sum, own.recompute.back(), 1);
    }
    own.d2h = Column(0), own.h2d = Column(0), own.total = Column(0);
    for (size_t k = 0; k < rank.kinds.size(); ++k) AddKind(rank, k, own);
    own_.push_back(own);
  }

  // Makes the rank's rates at least its rates while layers of kind k run.
  void AddKind(const SwapProblem::Rank& rank, size_t k, const Own& own) {
    const SwapProblem::Kind& kind = rank.kinds[k];
    const double tf = kind.forward_layer_s, tb = kind.backward_layer_s;
    const double ff = kind.forward_d2h_fixed_bytes / kGiga;
    const double fh = kind.forward_h2d_fixed_bytes / kGiga;
    const double bf = kind.backward_d2h_fixed_bytes / kGiga;
    const double bh = kind.backward_h2d_fixed_bytes / kGiga;
    Pass(rank, k, own, own.d2h, true, ff, tf);
    Pass(rank, k, own, own.d2h, false, bf, tb);
    Pass(rank, k, own, own.h2d, false, fh, tf);
    Pass(rank, k, own, own.h2d, true, bh, tb);
    Pass(rank, k, own, own.total, true, ff + fh, tf);
    Pass(rank, k, own, own.total, true, bf + bh, tb);
  }

  void Pass(const SwapProblem::Rank& rank, size_t k, const Own& own, int rate,
            bool swapped, double fixed, double window) {
    const int row = RowAtLeast(fixed);
    Put(row, rate, window);
    if (!swapped) return;
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      if (rank.tensors[t].kind != k || rank.tensors[t].traffic_in_fixed) {
        continue;
      }
      Put(row, own.swap[t], -rank.tensors[t].bytes / kGiga);
    }
  }

  // Adds the row of a capacity. Exceeding it by `unit` costs 1.
  int Capacity(double capacity, double unit) {
    const int row = RowAtMost(capacity / kGiga);
    excesses_.push_back(Column(0));
    Put(row, excesses_.back(), -unit / kGiga);
    return row;
  }

  void AddLinks() {
    for (const SwapProblem::Link& link : problem_.links) {
      const double d2h = link.d2h_bytes_per_s, h2d = link.h2d_bytes_per_s;
      const int out = Capacity(d2h, d2h), in = Capacity(h2d, h2d);
      const int both =
          link.total_bytes_per_s
              ? Capacity(*link.total_bytes_per_s, *link.total_bytes_per_s)
              : 0;
      for (size_t r = 0; r < own_.size(); ++r) {
        const auto& on = problem_.ranks[r].links;
        if (std::find(on.begin(), on.end(), link.name) == on.end()) continue;
        Put(out, own_[r].d2h, 1);
        Put(in, own_[r].h2d, 1);
        if (both != 0) Put(both, own_[r].total, 1);
      }
    }
  }

  static double Layers(const SwapProblem::Rank& rank, size_t t) {
    const SwapProblem::Kind& kind = rank.kinds[rank.tensors[t].kind];
    return static_cast<double>(kind.layers - kind.resident_layers);
  }

  void AddMemory() {
    const double gib = 1024.0 * 1024 * 1024;
    for (const SwapProblem::Numa& numa : problem_.numa) {
      double fixed = 0;
      for (const SwapProblem::Rank& rank : problem_.ranks) {
        if (rank.numa == numa.id) fixed += rank.host_fixed_bytes;
      }
      const double budget = numa.host_budget_bytes;
      const int row = Capacity(budget - fixed, budget > 0 ? budget : gib);
      for (size_t r = 0; r < own_.size(); ++r) {
        const SwapProblem::Rank& rank = problem_.ranks[r];
        if (rank.numa == numa.id) PutBytes(row, rank, own_[r].swap);
      }
    }
    for (const SwapProblem::Host& host : problem_.hosts) {
      const auto in = [&host](const SwapProblem::Rank& rank) {
        return std::count(rank.hosts.begin(), rank.hosts.end(), host.name) > 0;
      };
      double fixed = 0;
      for (const SwapProblem::Rank& rank : problem_.ranks) {
        if (in(rank)) fixed += rank.host_fixed_bytes;
      }
      const double budget = host.budget_bytes;
      const int row = Capacity(budget - fixed, budget > 0 ? budget : gib);
      for (size_t r = 0; r < own_.size(); ++r) {
        const SwapProblem::Rank& rank = problem_.ranks[r];
        if (in(rank)) PutBytes(row, rank, own_[r].swap);
      }
    }
    for (size_t r = 0; r < own_.size(); ++r) {
      const SwapProblem::Rank& rank = problem_.ranks[r];
      const double budget = rank.gpu_budget_bytes;
      PutBytes(Capacity(budget, budget > 0 ? budget : gib), rank, own_[r].keep);
    }
  }

  void PutBytes(int row, const SwapProblem::Rank& rank,
                const std::vector<int>& columns) {
    for (size_t t = 0; t < columns.size(); ++t) {
      Put(row, columns[t], Layers(rank, t) * rank.tensors[t].bytes / kGiga);
    }
  }

  void AddObjectives() {
    const int all_seconds = RowAtLeast(0), all_bytes = RowAtLeast(0);
    Put(all_seconds, recompute_, 1);
    Put(all_bytes, moved_, 1);
    for (size_t r = 0; r < own_.size(); ++r) {
      const SwapProblem::Rank& rank = problem_.ranks[r];
      double windows = 0;
      for (const SwapProblem::Kind& kind : rank.kinds) {
        windows += static_cast<double>(kind.layers) *
                   (kind.forward_layer_s + kind.backward_layer_s);
      }
      const int row = RowAtLeast(windows);
      Put(row, step_, 1);
      for (size_t t = 0; t < rank.tensors.size(); ++t) {
        const double seconds =
            Layers(rank, t) * rank.tensors[t].recompute_s.value_or(0);
        Put(row, own_[r].recompute[t], -seconds);
        Put(all_seconds, own_[r].recompute[t], -seconds);
        if (rank.tensors[t].traffic_in_fixed) continue;
        Put(all_bytes, own_[r].swap[t],
            -2 * Layers(rank, t) * rank.tensors[t].bytes / kGiga);
      }
    }
    const int row = RowAtLeast(0);
    Put(row, excess_, 1);
    for (const int e : excesses_) Put(row, e, -1);
  }

  double Minimise(int column) {
    for (int j = 1; j <= glp_get_num_cols(lp_); ++j) {
      glp_set_obj_coef(lp_, j, j == column ? 1 : 0);
    }
    glp_smcp parameters;
    glp_init_smcp(&parameters);
    parameters.msg_lev = GLP_MSG_OFF;
    parameters.tol_bnd = 1e-9;
    parameters.tol_dj = 1e-9;
    glp_adv_basis(lp_, 0);
    if (glp_simplex(lp_, &parameters) != 0 || glp_get_status(lp_) != GLP_OPT) {
      throw std::runtime_error("GLPK found no optimum");
    }
    return glp_get_obj_val(lp_);
  }

  void Fix(int column, double value) {
    glp_set_col_bnds(lp_, column, GLP_DB, 0, value * (1 + 1e-9) + 1e-12);
  }

  const SwapProblem& problem_;
  glp_prob* lp_;
  std::vector<Entry> entries_;
  std::vector<Own> own_;
  std::vector<int> excesses_;
  std::map<std::string, std::pair<int, int>> shared_;
  int step_, recompute_, moved_, excess_;
};

}  // namespace

Reference SolveWithGlpk(const SwapProblem& problem) {
  return Glpk(problem).Solve();
}

}  // namespace sluice::planner
