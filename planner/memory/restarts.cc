#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/memory/search.h"

namespace sluice::planner {
namespace {

// Each letter is a criterion of MiniMalloc. A string sorts by its letters'
// criteria in turn, all descending.
//   T  most units alive in a slot the item lives in
//   W  lifetime     A  area         w, a  the same in slots
//   Z  size         O  items it lives together with
const char* const kOrders[] = {"TWA", "Twa", "WAT", "waT", "TAW", "Taw", "TOW",
                               "AWT", "awT", "OZW", "ZWT", "TZW", "OTA", "OWA"};

constexpr int64_t kFirstBudget = 2000;
// Nodes per item for a mixture. Most searches that ever end need no more.
constexpr int64_t kMixtureNodes = 2;

// Returns a number uniform in [low, high), the same on every machine.
double Uniform(std::mt19937* random, double low, double high) {
  return low + (high - low) * static_cast<double>((*random)() >> 8) / (1 << 24);
}

}  // namespace

Restarts::Restarts(const Problem& problem)
    : problem_(problem), search_(problem) {
  const RangeMax live(problem.live);
  const std::vector<int64_t> neighbours = NeighbourCounts(problem);
  for (size_t k = 0; k < problem.items.size(); ++k) {
    const Item& item = problem.items[k];
    features_.push_back(
        {.total = static_cast<double>(live.Of(item.lower, item.upper)),
         .lifetime =
             static_cast<double>(item.death) - static_cast<double>(item.birth),
         .slots = static_cast<double>(item.lifetime()),
         .size = static_cast<double>(item.size),
         .neighbours = static_cast<double>(neighbours[k])});
  }
  for (const char* letters : kOrders) {
    statics_.push_back({letters, StaticOrder(letters)});
  }
}

double Restarts::Criterion(size_t k, char letter) const {
  const Features& f = features_[k];
  switch (letter) {
    case 'T':
      return f.total;
    case 'W':
      return f.lifetime;
    case 'w':
      return f.slots;
    case 'A':
      return f.size * f.lifetime;
    case 'a':
      return f.size * f.slots;
    case 'Z':
      return f.size;
    default:
      return f.neighbours;
  }
}

Order Restarts::StaticOrder(const std::string& letters) const {
  Order order(features_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    for (const char letter : letters) {
      const double x = Criterion(a, letter);
      const double y = Criterion(b, letter);
      if (x != y) return x > y;
    }
    return false;
  });
  return order;
}

Order Restarts::Mixture(std::mt19937* random) const {
  // Three of four mixtures are close to size^a lifetime^b with b > a, which end
  // most often; the others are arbitrary.
  const bool near_area = Uniform(random, 0, 1) < 0.75;
  const auto pick = [&](double low, double high, double any_low,
                        double any_high) {
    return near_area ? Uniform(random, low, high)
                     : Uniform(random, any_low, any_high);
  };
  const double size = pick(0.05, 0.95, -0.5, 1.5);
  const double lifetime = size + pick(0.1, 0.7, -1, 1);
  const double total = pick(-2, 0.8, -4, 20);
  const double neighbours = pick(-0.3, 0.05, -0.3, 0.7);
  const double noise = pick(0.02, 0.25, 0, 0.8);
  const bool in_slots = Uniform(random, 0, 1) < 0.125;
  std::vector<double> key;
  for (const Features& f : features_) {
    key.push_back(size * std::log(f.size) +
                  lifetime * std::log(in_slots ? f.slots : f.lifetime) +
                  total * f.total / static_cast<double>(problem_.max_live) +
                  neighbours * std::log(1 + f.neighbours) +
                  noise * Uniform(random, 0, 1));
  }
  Order order(features_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key[a] > key[b]; });
  return order;
}

bool Restarts::Try(const Order& order, const std::string& name,
                   int64_t capacity, int64_t budget, const Expired& expired,
                   SearchResult* result) {
  result->verdict = search_.Run(order, capacity, budget, expired);
  result->nodes += std::max<int64_t>(search_.nodes(), 1);
  if (result->verdict == Verdict::kUnknown) return false;
  result->order = name;
  if (result->verdict == Verdict::kFits) result->offsets = search_.offsets();
  return true;
}

SearchResult Restarts::Ask(int64_t capacity, int64_t max_nodes,
                           const Expired& expired) {
  SearchResult result;
  std::mt19937 random(1);
  const int64_t mixture_budget =
      kMixtureNodes * static_cast<int64_t>(problem_.items.size()) + 100;
  int mixtures = 0;
  for (int64_t budget = kFirstBudget; result.nodes < max_nodes; budget *= 2) {
    const int64_t before = result.nodes;
    for (const NamedOrder& named : statics_) {
      const int64_t left = max_nodes - result.nodes;
      if (left <= 0 || expired()) return result;
      if (Try(named.order, named.name, capacity, std::min(budget, left),
              expired, &result)) {
        return result;
      }
    }
    // Mixtures get twice as many nodes as the static orders used in this round.
    const int64_t until = 3 * result.nodes - 2 * before;
    while (result.nodes < until) {
      const int64_t left = max_nodes - result.nodes;
      if (left <= 0 || expired()) return result;
      if (Try(Mixture(&random), fmt::format("mixture{}", mixtures++), capacity,
              std::min(mixture_budget, left), expired, &result)) {
        return result;
      }
    }
  }
  return result;
}

}  // namespace sluice::planner
