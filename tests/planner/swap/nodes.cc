#include "tests/planner/swap/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;

class Maker {
 public:
  explicit Maker(std::mt19937& random) : random_(random) {}

  SwapProblem Node() {
    const size_t ranks = 1 + random_() % 8;
    const size_t numa = 1 + random_() % 2;
    // Each kind of limit has one scale per node, roomy or tight, so that each
    // kind binds on some nodes.
    host_ = Spread(0.2, 3);
    gpu_ = Coin(0.3) ? 0 : Spread(0.01, 2);
    link_ = Spread(0.5, 4);
    for (size_t r = 0; r < ranks; ++r) AddRank(r, numa);
    for (size_t n = 0; n < numa; ++n) AddNuma(static_cast<int64_t>(n));
    for (size_t n = 0; n < numa; ++n) {
      if (Coin(0.6)) AddSwitch(static_cast<int64_t>(n));
    }
    return std::move(node_);
  }

 private:
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  double Spread(double low, double high) {
    return std::exp(Uniform(std::log(low), std::log(high)));
  }
  bool Coin(double chance) { return Uniform(0, 1) < chance; }
  double Maybe(double value) { return Coin(0.5) ? value : 0; }

  SwapProblem::Tensor Tensor(size_t t) {
    SwapProblem::Tensor tensor{.name = fmt::format("t{}", t),
                               .bytes = Coin(0.05) ? 0 : Spread(1e7, 4e9)};
    if (Coin(0.8)) tensor.recompute_s = Coin(0.1) ? 0 : Spread(1e-4, 0.5);
    const double must = Uniform(0, 1);
    if (must < 0.1) {
      tensor.must = SwapProblem::Must::kSwap;
    } else if (must < 0.13) {
      tensor.must = SwapProblem::Must::kKeep;
    } else if (must < 0.18 && tensor.recompute_s) {
      tensor.must = SwapProblem::Must::kRecompute;
    }
    return tensor;
  }

  void AddRank(size_t r, size_t numa) {
    SwapProblem::Rank rank{.name = fmt::format("{}", r),
                           .numa = static_cast<int64_t>(r % numa)};
    SwapProblem::Kind& kind = rank.kinds[0];
    kind.layers = 1 + static_cast<int64_t>(random_() % 80);
    kind.resident_layers = static_cast<int64_t>(random_() % 3);
    kind.resident_layers = std::min(kind.resident_layers, kind.layers);
    kind.forward_layer_s = Spread(0.05, 3);
    kind.backward_layer_s = kind.forward_layer_s * Uniform(1, 3);
    for (size_t t = random_() % 13; t > 0; --t) {
      rank.tensors.push_back(Tensor(t));
    }
    double bytes = 0;
    for (const SwapProblem::Tensor& tensor : rank.tensors)
      bytes += tensor.bytes;
    const double all = bytes * static_cast<double>(kind.layers);
    rank.gpu_budget_bytes = gpu_ * all * Uniform(0.5, 1.5);
    kind.forward_d2h_fixed_bytes = Maybe(bytes * Uniform(0, 0.2));
    kind.forward_h2d_fixed_bytes = Maybe(bytes * Uniform(0, 0.5));
    kind.backward_d2h_fixed_bytes = Maybe(bytes * Uniform(0, 0.5));
    kind.backward_h2d_fixed_bytes = Maybe(bytes * Uniform(0, 0.5));
    rank.host_fixed_bytes = Maybe(all * Uniform(0, 0.2));
    const double rate = std::max(bytes / kind.forward_layer_s, 1e6);
    SwapProblem::Link own{.name = fmt::format("pcie{}", r),
                          .h2d_bytes_per_s = link_ * rate * Uniform(0.5, 1.5),
                          .d2h_bytes_per_s = link_ * rate * Uniform(0.5, 1.5),
                          .total_bytes_per_s = {}};
    if (Coin(0.4)) own.total_bytes_per_s = own.d2h_bytes_per_s * 1.4;
    rank.links.push_back(own.name);
    node_.links.push_back(own);
    node_.ranks.push_back(rank);
  }

  void AddNuma(int64_t id) {
    double all = 0;
    for (const SwapProblem::Rank& rank : node_.ranks) {
      if (rank.numa != id) continue;
      all += rank.host_fixed_bytes;
      for (const SwapProblem::Tensor& tensor : rank.tensors) {
        all +=
            tensor.bytes * static_cast<double>(rank.kinds[tensor.kind].layers);
      }
    }
    node_.numa.push_back({id, Coin(0.03) ? 0 : host_ * all});
  }

  void AddSwitch(int64_t numa) {
    SwapProblem::Link shared{.name = fmt::format("switch{}", numa)};
    for (SwapProblem::Rank& rank : node_.ranks) {
      if (rank.numa != numa) continue;
      for (const SwapProblem::Link& own : node_.links) {
        if (own.name != rank.links[0]) continue;
        shared.h2d_bytes_per_s += own.h2d_bytes_per_s;
        shared.d2h_bytes_per_s += own.d2h_bytes_per_s;
      }
      rank.links.push_back(shared.name);
    }
    shared.h2d_bytes_per_s *= Uniform(0.3, 1);
    shared.d2h_bytes_per_s *= Uniform(0.3, 1);
    if (Coin(0.5)) shared.total_bytes_per_s = shared.d2h_bytes_per_s * 1.5;
    if (shared.d2h_bytes_per_s > 0) node_.links.push_back(shared);
  }

  std::mt19937& random_;
  double host_ = 1, gpu_ = 1, link_ = 1;
  SwapProblem node_;
};

}  // namespace

SwapProblem RandomNode(std::mt19937& random) { return Maker(random).Node(); }

namespace {

// Adds a kind like the rank's only kind, with `layers` layers and everything
// else randomly scaled. Some kinds are frozen: they have no tensors and no
// backward.
void AddKind(const SwapProblem::Rank& one, int64_t layers, size_t k,
             std::mt19937& random, SwapProblem::Rank* rank) {
  const auto times = [&random] {
    return std::uniform_real_distribution<double>(0.3, 2)(random);
  };
  const bool frozen = k > 0 && random() % 8 == 0;
  SwapProblem::Kind kind = one.kinds[0];
  kind.name = fmt::format("kind{}", k);
  kind.layers = layers;
  kind.resident_layers = std::min(kind.resident_layers, layers);
  kind.forward_layer_s *= times();
  kind.forward_d2h_fixed_bytes *= times();
  kind.forward_h2d_fixed_bytes *= times();
  kind.backward_layer_s *= frozen ? 0 : times();
  kind.backward_d2h_fixed_bytes *= frozen ? 0 : times();
  kind.backward_h2d_fixed_bytes *= frozen ? 0 : times();
  rank->kinds.push_back(kind);
  if (frozen) return;
  for (SwapProblem::Tensor tensor : one.tensors) {
    tensor.kind = k;
    tensor.bytes *= times();
    if (tensor.recompute_s) *tensor.recompute_s *= times();
    rank->tensors.push_back(tensor);
  }
}

}  // namespace

SwapProblem WithKinds(SwapProblem node, std::mt19937& random) {
  for (SwapProblem::Rank& rank : node.ranks) {
    const SwapProblem::Rank one = rank;
    rank.kinds.clear();
    rank.tensors.clear();
    int64_t left = one.kinds[0].layers;
    const auto kinds = std::min<int64_t>(1 + random() % 3, left);
    for (int64_t k = kinds; k > 0; --k) {
      const int64_t layers =
          k == 1 ? left : 1 + static_cast<int64_t>(random()) % (left - k + 1);
      AddKind(one, layers, static_cast<size_t>(kinds - k), random, &rank);
      left -= layers;
    }
  }
  return node;
}

SwapProblem BusyNode(size_t ranks, size_t tensors) {
  SwapProblem node;
  const double wide = static_cast<double>(ranks) / 8;
  // Scales sizes, so that all tensors together have the bytes of 12 tensors.
  const double part = 12 / static_cast<double>(tensors);
  node.numa = {{0, 1.2e12 * wide}, {1, 1.2e12 * wide}};
  for (const char* name : {"switch0", "switch1"}) {
    node.links.push_back({name, 6e10 * wide, 6e10 * wide, 1e11 * wide});
  }
  for (size_t r = 0; r < ranks; ++r) {
    const int64_t numa = r < ranks / 2 ? 0 : 1;
    const std::string own = fmt::format("pcie{}", r);
    node.links.push_back({own, 2.5e10, 2.5e10, 4e10});
    SwapProblem::Rank rank{.name = fmt::format("{}", r),
                           .numa = numa,
                           .links = {own, fmt::format("switch{}", numa)},
                           .gpu_budget_bytes = 2e10,
                           .host_fixed_bytes = 1e10};
    rank.kinds = {{.layers = 32,
                   .resident_layers = 2,
                   .forward_layer_s = 0.9 + 0.01 * static_cast<double>(r),
                   .backward_layer_s = 2,
                   .forward_d2h_fixed_bytes = 1e8,
                   .forward_h2d_fixed_bytes = 4e9,
                   .backward_d2h_fixed_bytes = 2e9,
                   .backward_h2d_fixed_bytes = 5e9}};
    for (size_t t = 0; t < tensors; ++t) {
      SwapProblem::Tensor tensor{
          .name = fmt::format("t{}", t),
          .bytes = part * (1e9 + 3e8 * static_cast<double>(t % 5))};
      if (t < 2) tensor.must = SwapProblem::Must::kSwap;
      if (t >= 2) {
        tensor.recompute_s = part * (0.01 + 0.02 * static_cast<double>(t % 7));
      }
      rank.tensors.push_back(tensor);
    }
    node.ranks.push_back(rank);
  }
  return node;
}

}  // namespace sluice::planner
