// Runs the canonical search with many static orders (internal to the planner).
//
// The time that a search takes with one order is heavy-tailed: with most orders
// it never ends, with some it ends after a few hundred nodes. So orders get
// small budgets in turn: the classic orders with growing budgets, and between
// them random mixtures of their criteria.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "planner/memory/search.h"

namespace sluice::planner {

struct SearchResult {
  Verdict verdict = Verdict::kUnknown;
  Offsets offsets;
  std::string order;  // the order that decided
  int64_t nodes = 0;  // spent
};

class Restarts {
 public:
  explicit Restarts(const Problem& problem);

  // Decides whether the problem fits `capacity`, with at most `max_nodes` nodes
  // over all orders. The answer does not depend on earlier calls.
  SearchResult Ask(int64_t capacity, int64_t max_nodes,
                   const std::function<bool()>& expired);

 private:
  struct Features {
    double total;     // most units alive in a slot the item lives in
    double lifetime;  // in the trace's time
    double slots;     // lifetime in slots
    double size;
    double neighbours;  // number of items that live together with it
  };

  double Criterion(size_t k, char letter) const;
  Order StaticOrder(const std::string& letters) const;
  Order Mixture(std::mt19937* random) const;
  // Runs the search with one order. Returns whether it decided.
  bool Try(const Order& order, const std::string& name, int64_t capacity,
           int64_t budget, const std::function<bool()>& expired,
           SearchResult* result);

  const Problem& problem_;
  CanonicalSearch search_;
  std::vector<Features> features_;
  std::vector<NamedOrder> statics_;
};

}  // namespace sluice::planner
