#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "planner/memory/arms.h"
#include "planner/memory/occupancy.h"

namespace sluice::planner {
namespace {

constexpr int kChain = 50;  // limit of the moves in a chain
// Addresses are grouped into about this many buckets; the search chooses a
// bucket, then one of at most kPlaces places in it.
constexpr int64_t kBuckets = 512;
constexpr size_t kPlaces = 64;
// Choosing a place for an item costs this many visits per item alive with it.
constexpr int64_t kLookVisits = 14;
// With fewer items, a step ends before a thread has started.
constexpr size_t kMinItemsToEjectInThreads = 2000;

// Shared by the two runs of a step, which have different seeds. The successful
// run with the fewest visits wins, the first seed on ties, whatever the timing.
struct Shared {
  std::atomic<int64_t> least{std::numeric_limits<int64_t>::max()};
  const Expired& expired;
};

// One run of a step: tries to place all items below one limit.
class Ejector {
 public:
  Ejector(const Problem& problem, const Offsets& offsets, int64_t limit,
          uint32_t seed)
      : problem_(problem),
        limit_(limit),
        shift_(std::bit_width(static_cast<uint64_t>(limit / kBuckets))),
        offsets_(offsets),
        seats_(offsets.size()),
        taken_(problem),
        random_(seed) {
    for (const Item& item : problem.items) {
      weight_.push_back(static_cast<float>(item.size) *
                        std::sqrt(static_cast<float>(item.lifetime())));
    }
    for (uint32_t k = 0; k < offsets_.size(); ++k) {
      seats_[k].cost = weight_[k];
      if (offsets_[k] + problem.items[k].size > limit_) {
        pool_.push_back(k);
        missing_ += static_cast<double>(weight_[k]);
      } else {
        Put(k, offsets_[k]);
      }
    }
  }

  // Returns whether all items got a place. Gives up after `visits` visits, when
  // the other run has won with fewer, or when the time is over.
  bool Run(int64_t visits, Shared* shared) {
    for (int chains = 1; !pool_.empty(); ++chains) {
      if (this->visits() > std::min(visits, shared->least.load()) ||
          (chains % 16 == 0 && shared->expired())) {
        return false;
      }
      Chain();
    }
    int64_t least = shared->least.load();
    while (this->visits() < least &&
           !shared->least.compare_exchange_weak(least, this->visits())) {
    }
    return true;
  }

  int64_t visits() const { return taken_.visited() + looked_; }
  Offsets Take() { return std::move(offsets_); }

 private:
  struct Move {
    uint32_t item;
    int64_t from;  // -1: the item had no place before
  };
  struct Seat {
    float cost;      // of placing the item again; grows with each failure
    uint16_t first;  // bucket of its first unit
    uint16_t last;   // bucket of its last unit
  };

  size_t BucketOf(int64_t address) const {
    return static_cast<size_t>(address >> shift_);
  }

  void Put(uint32_t k, int64_t at) {
    const Item& item = problem_.items[k];
    offsets_[k] = at;
    seats_[k].first = static_cast<uint16_t>(BucketOf(at));
    seats_[k].last = static_cast<uint16_t>(BucketOf(at + item.size - 1));
    taken_.Add(item, at, k);
  }

  void Drop(uint32_t k) { taken_.Remove(problem_.items[k], offsets_[k], k); }

  // Places items, starting with a random one of the pool, until the weight of
  // items without a place is less than before. Undoes its moves if that fails.
  void Chain() {
    const std::vector<uint32_t> pool = pool_;
    const double before = missing_;
    moves_.clear();
    std::swap(pool_.back(), pool_[random_() % pool_.size()]);
    for (int move = 0; move < kChain && !pool_.empty(); ++move) {
      PlaceNext();
      if (missing_ < before) return;
    }
    if (pool_.empty()) return;
    for (; !moves_.empty(); moves_.pop_back()) {
      const Move& move = moves_.back();
      if (move.from < 0) {
        Drop(move.item);
      } else {
        Put(move.item, move.from);
      }
    }
    pool_ = pool;
    missing_ = before;
  }

  void PlaceNext() {
    const uint32_t k = pool_.back();
    pool_.pop_back();
    const Item& item = problem_.items[k];
    int64_t at = taken_.Find(item, Fit::kBest, limit_);
    if (at + item.size > limit_) {
      seats_[k].cost += weight_[k];
      at = MakeRoom(k);
    }
    missing_ -= static_cast<double>(weight_[k]);
    Put(k, at);
    moves_.push_back({k, -1});
  }

  // Removes the items that occupy a cheap place for item k. Returns the place.
  int64_t MakeRoom(uint32_t k) {
    const Item& item = problem_.items[k];
    taken_.List(item, &together_);
    looked_ += kLookVisits * static_cast<int64_t>(together_.size());
    const int64_t at = BestPlace(item, CheapBucket(item));
    const size_t before = pool_.size();
    for (const uint32_t other : near_) {
      if (!InTheWay(other, at, item.size)) continue;
      Drop(other);
      moves_.push_back({other, offsets_[other]});
      missing_ += static_cast<double>(weight_[other]);
      pool_.push_back(other);
    }
    // The most expensive of the ejected items is placed next.
    std::ranges::sort(std::span(pool_).subspan(before), {},
                      [this](uint32_t other) {
                        return std::pair(seats_[other].cost, other);
                      });
    return at;
  }

  // For each bucket, sums the cost of items that begin (begun_) and that end
  // (ended_) in this or a lower bucket.
  void SumCosts(size_t buckets) {
    begun_.assign(buckets, 0);
    ended_.assign(2 * buckets, 0);
    // Neighbours often share a bucket. Two alternating sums per bucket shorten
    // the chain of dependent additions.
    size_t odd = 0;
    size_t bucket = 0;
    double sum = 0;
    for (const uint32_t other : together_) {
      const Seat seat = seats_[other];
      if (seat.first != bucket) {
        begun_[bucket] = sum;  // items are sorted by address
        bucket = seat.first;
        sum = 0;
      }
      const auto cost = static_cast<double>(seat.cost);
      sum += cost;
      ended_[2 * seat.last + odd] += cost;
      odd ^= 1;
    }
    begun_[bucket] = sum;
    for (size_t b = 0; b < buckets; ++b) {
      ended_[b] = ended_[2 * b] + ended_[2 * b + 1];
      if (b == 0) continue;
      begun_[b] += begun_[b - 1];
      ended_[b] += ended_[b - 1];
    }
  }

  // Returns the bucket where the blocking items cost least, approximately:
  // those that begin up to the place's last bucket, less those that end before
  // its first.
  size_t CheapBucket(const Item& item) {
    const size_t buckets = BucketOf(limit_) + 1;
    SumCosts(buckets);
    const int64_t highest = limit_ - item.size;
    size_t best = 0;
    double best_cost = std::numeric_limits<double>::infinity();
    for (size_t b = 0; b <= BucketOf(highest); ++b) {
      const int64_t at = std::min(static_cast<int64_t>(b) << shift_, highest);
      const double cost =
          begun_[BucketOf(at + item.size - 1)] - (b == 0 ? 0 : ended_[b - 1]);
      // Noise lets a bucket that costs up to a fifth more win sometimes.
      const double noisy = cost * static_cast<double>(64 + random_() % 13);
      if (noisy >= best_cost) continue;
      best_cost = noisy;
      best = b;
    }
    return best;
  }

  bool InTheWay(uint32_t other, int64_t at, int64_t size) const {
    return offsets_[other] < at + size &&
           offsets_[other] + problem_.items[other].size > at;
  }

  // Returns the cheapest place in a bucket: the bucket's begin, or a place that
  // touches an item. Fills near_ with the items that may block a place.
  int64_t BestPlace(const Item& item, size_t bucket) {
    const int64_t highest = limit_ - item.size;
    const int64_t from =
        std::min(static_cast<int64_t>(bucket) << shift_, highest);
    const int64_t to = std::min(from + (int64_t{1} << shift_) - 1, highest);
    FindPlaces(item.size, from, to);
    int64_t best = from;
    double best_cost = std::numeric_limits<double>::infinity();
    for (const int64_t place : places_) {
      double cost = 0;
      for (const uint32_t other : near_) {
        if (!InTheWay(other, place, item.size)) continue;
        cost += static_cast<double>(seats_[other].cost);
      }
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = place;
    }
    return best;
  }

  void FindPlaces(int64_t size, int64_t from, int64_t to) {
    const size_t first = BucketOf(std::max<int64_t>(from - 1, 0));
    const size_t last = BucketOf(to + size);
    near_.clear();
    places_.assign(1, from);
    for (const uint32_t other : together_) {
      const Seat seat = seats_[other];
      if (seat.first > last || seat.last < first) continue;
      near_.push_back(other);
      const int64_t below = offsets_[other] - size;
      const int64_t above = offsets_[other] + problem_.items[other].size;
      if (from <= below && below <= to) places_.push_back(below);
      if (from <= above && above <= to) places_.push_back(above);
    }
    for (size_t p = 0; p < kPlaces && places_.size() > kPlaces; ++p) {
      std::swap(places_[p], places_[p + random_() % (places_.size() - p)]);
    }
    places_.resize(std::min(places_.size(), kPlaces));
    looked_ += static_cast<int64_t>(places_.size() * near_.size());
  }

  const Problem& problem_;
  const int64_t limit_;
  const int shift_;  // address >> shift_ is the bucket
  Offsets offsets_;  // valid for items not in pool_
  std::vector<Seat> seats_;
  std::vector<float> weight_;  // an item's difficulty, from size and lifetime
  Occupancy taken_;
  std::vector<uint32_t> pool_;  // items without a place; the last is next
  double missing_ = 0;          // sum of the weights of the items in pool_
  std::vector<Move> moves_;     // of the current chain
  std::mt19937 random_;
  int64_t looked_ = 0;
  // Scratch buffers of one move.
  std::vector<uint32_t> together_;
  std::vector<uint32_t> near_;
  std::vector<int64_t> places_;
  std::vector<double> begun_;
  std::vector<double> ended_;
};

struct Step {
  int64_t visits = 0;
  std::optional<Offsets> offsets;  // set if all items got below `limit`
};

Step TakeStep(const Problem& problem, const Offsets& offsets, int64_t limit,
              uint32_t seed, int64_t visits, const Expired& expired) {
  Shared shared{.expired = expired};
  Ejector one(problem, offsets, limit, 2 * seed);
  Ejector two(problem, offsets, limit, 2 * seed + 1);
  bool first = false;
  bool second = false;
  if (problem.items.size() >= kMinItemsToEjectInThreads) {
    std::thread ahead([&] { second = two.Run(visits, &shared); });
    first = one.Run(visits, &shared);
    ahead.join();
  } else {
    first = one.Run(visits, &shared);
    second = two.Run(visits, &shared);
  }
  if (second && (!first || two.visits() < one.visits())) {
    return {two.visits(), two.Take()};
  }
  if (first) return {one.visits(), one.Take()};
  return {visits, std::nullopt};
}

}  // namespace

std::optional<Offsets> LowerByEjection(const Problem& problem, Offsets offsets,
                                       int64_t target, int64_t visits,
                                       const Expired& expired) {
  std::optional<Offsets> best;
  int64_t peak = PeakOf(problem, offsets);
  // A step lowers the limit by this part of the gap to `target`.
  double fraction = 0.05;
  int64_t share = visits / 16;
  for (uint32_t seed = 1; visits > 0 && peak > target && !expired(); ++seed) {
    const auto step =
        static_cast<int64_t>(fraction * static_cast<double>(peak - target));
    const int64_t limit = peak - std::max<int64_t>(step, 1);
    Step taken = TakeStep(problem, offsets, limit, seed,
                          std::min(visits, share), expired);
    visits -= taken.visits;
    if (taken.offsets) {
      offsets = *std::move(taken.offsets);
      best = offsets;
      peak = PeakOf(problem, offsets);
      fraction = std::min(1.0, fraction * 1.5);
    } else if ((fraction /= 2.5) < 0.005) {
      fraction = 0.05;
      share *= 2;
    }
  }
  return best;
}

}  // namespace sluice::planner
