// Canonical search (internal to the planner): decides whether a problem fits a
// capacity. The algorithm is MiniMalloc's (Moffitt, ASPLOS'23, DOI
// 10.1145/3623278.3624752). README.md shows why each cut is sound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/memory/greedy.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

enum class Verdict {
  kFits,        // offsets() is a placement within the capacity
  kImpossible,  // proved: no placement has a peak <= capacity
  kUnknown,     // the budget was used up
};

// Searches depth first over canonical placements: items are placed in ascending
// (offset, rank), and each rests on 0 or on an item placed before it. An item
// is open until it is placed. Memory: one entry per pair of items that live
// together.
class CanonicalSearch {
 public:
  explicit CanonicalSearch(const Problem& problem);

  // `order` ranks the items. `expired` is called every few hundred nodes.
  Verdict Run(const Order& order, int64_t capacity, int64_t max_nodes,
              const Expired& expired);

  const Offsets& offsets() const { return least_; }  // valid after kFits
  int64_t nodes() const { return nodes_; }           // of the last Run

 private:
  // The last placement. The next one must not be before it.
  struct Mark {
    int64_t offset = 0;
    uint32_t rank = 0;
  };
  struct Candidate {
    int64_t offset;
    uint32_t rank;
    uint32_t item;
    auto operator<=>(const Candidate&) const = default;
  };
  struct Change {
    uint32_t item;
    int64_t least;  // the item's least_ before the change
    bool placement;
  };
  // The effect of placing an item on the open items.
  struct Effect {
    bool hat = false;  // an open item lives together with the placed one
    bool cut = false;  // open items fell into groups that share no slot
    bool fits = true;  // no open item was pushed above the capacity
  };
  // A range of open_ with items that touch in time, directly or through others,
  // and the slots that they live in.
  struct Part {
    size_t begin;
    size_t end;
    int32_t from;
    int32_t to;
  };
  // Lists of indices, stored one after another.
  struct Lists {
    std::vector<uint32_t> starts;  // one entry more than lists
    std::vector<uint32_t> values;
    const uint32_t* begin(size_t k) const { return values.data() + starts[k]; }
    const uint32_t* end(size_t k) const {
      return values.data() + starts[k + 1];
    }
  };

  void FindNeighbours();
  void FindAlive();
  void FindTwins();
  void Reset(const Order& order);
  bool Solve(Part part, Mark last);
  bool Branch(Part part, Mark last);
  bool Continue(Part part, const Candidate& placed, const Effect& effect);
  bool OutOfBudget();
  bool PassedOver(uint32_t k, Mark last) const;
  bool CanRest(uint32_t k, Mark last, int64_t limit);
  bool CanLieAt(uint32_t k, Mark last, int64_t limit);
  bool HasPlace(uint32_t k, Mark last);
  bool SlotFits(size_t slot, Mark last);
  bool Fits(Part part, Mark last);
  std::vector<Part> Split(Part part);
  void AddCandidates(Part part, Mark last);
  Part Without(Part part, uint32_t item);
  Effect Place(const Candidate& next);
  void Rewind(size_t to);

  const Problem& problem_;
  const std::vector<Item>& items_;
  Lists neighbours_;  // [item]: items that live together with it
  Lists alive_;       // [slot]: items alive in it
  // [item]: the equal item that must be placed before it, or -1.
  std::vector<int32_t> twin_;

  // State of one run.
  int64_t capacity_ = 0;
  int64_t max_nodes_ = 0;
  const Expired* expired_ = nullptr;
  int64_t nodes_ = 0;
  bool stopped_ = false;
  std::vector<uint32_t> rank_;
  Offsets least_;  // lowest possible offset; final if placed
  std::vector<uint8_t> placed_;
  std::vector<int64_t> remaining_;  // [slot]: units of open items
  std::vector<int32_t> cover_;  // [slot]: open items also alive a slot before
  std::vector<uint32_t> support_;  // [item]: the last item that CanRest found
  std::vector<uint32_t> witness_;  // [slot]: the last item that SlotFits found
  // The slot and item of the last failure are checked first: most dead ends
  // have the same reason.
  size_t bad_slot_ = 0;
  uint32_t bad_item_ = 0;
  std::vector<uint32_t> open_;
  std::vector<uint32_t> position_;  // [item]: its index in open_
  std::vector<Candidate> pool_;  // candidates of all nodes on the current path
  std::vector<Change> trail_;
};

struct SearchResult {
  Verdict verdict = Verdict::kUnknown;
  Offsets offsets;
  std::string order;  // name of the order that led to the verdict
  int64_t nodes = 0;  // spent
};

// Runs the canonical search with many static orders. The time of a search is
// heavy-tailed over orders: with most orders a search never ends, with some it
// ends after a few hundred nodes. So orders get small budgets in turn: the
// classic orders with growing budgets, and between them random mixtures of
// their criteria.
class Restarts {
 public:
  explicit Restarts(const Problem& problem);

  // Decides whether the problem fits `capacity`, with at most `max_nodes`
  // nodes. The answer does not depend on earlier calls.
  SearchResult Ask(int64_t capacity, int64_t max_nodes, const Expired& expired);

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
  // Returns whether the search with one order reached a verdict.
  bool Try(const Order& order, const std::string& name, int64_t capacity,
           int64_t budget, const Expired& expired, SearchResult* result);

  const Problem& problem_;
  CanonicalSearch search_;
  std::vector<Features> features_;
  std::vector<NamedOrder> statics_;
};

}  // namespace sluice::planner
