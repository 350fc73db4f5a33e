#include "tests/planner/stream/simulated_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace sluice::stream {

SimulatedFetches::SimulatedFetches(Engine* link, Engine* compute,
                                   std::vector<double>* slots, size_t count,
                                   Program program)
    : link_(link),
      compute_(compute),
      slots_(slots),
      count_(count),
      program_(std::move(program)) {
  Pump();
}

void SimulatedFetches::Pump() {
  while (issued_ < count_ && issued_ - done_ < slots_->size()) {
    Fetch fetch;
    double& slot = (*slots_)[issued_ % slots_->size()];
    if (std::isinf(slot) || !program_(issued_, fetch)) return;
    slot = fetch.seconds > 0
               ? link_->Run(std::max(slot, fetch.written), fetch.seconds)
               : slot;
    ready_.push_back(slot);
    ++issued_;
  }
}

void SimulatedFetches::Next() {
  Pump();
  compute_->free = std::max(compute_->free, ready_.at(taken_++));
}

void SimulatedFetches::Done(double last_use) {
  (*slots_)[done_++ % slots_->size()] = last_use;
  Pump();
}

namespace {

// Time of last use of a slot that cannot be used before the next phase begins.
constexpr double kBlocked = std::numeric_limits<double>::infinity();

// The rings of a phase: the time of each slot's last use.
struct Rings {
  std::vector<double> staging, inputs, outer, blocks, gradients;
  Rings(size_t depth, double free)
      : staging(2, free),
        inputs(2, free),
        outer(2, free),
        blocks(depth, free),
        gradients(depth, free) {}
};

class Simulation {
 public:
  Simulation(const StreamShape& shape, const ChunkCompute& chunk,
             const LinkSpeeds& links)
      : shape_(shape),
        chunk_(chunk),
        links_(links),
        rings_(std::make_unique<Rings>(shape.prefetch_depth, 0)),
        chunks_(static_cast<size_t>(shape.chunks())),
        hidden_(chunks_),
        keys_(chunks_) {}

  void Forward();
  void Tokens();
  void Attention();
  // Waits for all issued work, and resets the rings. Returns the time.
  double Enter();
  double now() const { return compute_.free; }

 private:
  double In(int64_t bytes) const { return double(bytes) / links_.h2d; }
  int64_t Saved() const {
    int64_t bytes = 0;
    for (const Class which : kPostClasses) {
      bytes += shape_.stored_bytes(which, 0);
    }
    return bytes;
  }
  int64_t Bytes(std::initializer_list<Class> classes) const {
    int64_t bytes = 0;
    for (const Class which : classes) bytes += shape_.chunk_bytes(which, 0);
    return bytes;
  }
  int64_t Keys() const { return Bytes({Class::kK, Class::kV}); }
  int64_t Queries() const {
    return Bytes({Class::kQ, Class::kO, Class::kLse, Class::kOutputGradient});
  }
  void Compute(double seconds) { compute_.Run(0, seconds); }
  double Send(int64_t bytes) {
    return out_.Run(compute_.free, double(bytes) / links_.d2h);
  }
  void BeginStaging() {
    staged_ = (staged_ + 1) % 2;
    compute_.free = std::max(compute_.free, rings_->staging[staged_]);
  }
  double Flush(int64_t bytes) {
    if (bytes > 0) rings_->staging[staged_] = Send(bytes);
    return rings_->staging[staged_];
  }
  bool Last(size_t m) const { return chunks_ > 1 && m + 1 == chunks_; }
  void Prepare(Phase phase);
  // Returns the rings of the prepared phase, or else of the current phase.
  Rings& latest() { return next_ != nullptr ? *next_ : *rings_; }
  void FetchTokens();
  void FetchAttention();
  SimulatedFetches Fetches(std::vector<double>* ring, size_t count,
                           SimulatedFetches::Program program) {
    return {&in_, &compute_, ring, count, std::move(program)};
  }

  const StreamShape& shape_;
  const ChunkCompute& chunk_;
  const LinkSpeeds& links_;
  Engine in_, compute_, out_;
  std::unique_ptr<Rings> rings_, next_;
  size_t staged_ = 0;
  size_t chunks_;
  struct Step {
    size_t outer, inner;
  };
  std::vector<Step> steps_;  // the blocks of attention's backward
  // Maps an inner chunk to the last outer chunk with which its gradients were
  // summed, and to the time at which the sums are in host memory.
  std::map<size_t, std::pair<size_t, double>> sent_;
  std::optional<SimulatedFetches> saved_rows_, outer_, inner_, gradients_;
  // For each chunk, the time at which its bytes are in host memory.
  std::vector<double> hidden_, keys_;
};

double Simulation::Enter() {
  for (const auto* ring : {&rings_->staging, &rings_->inputs, &rings_->outer,
                           &rings_->blocks, &rings_->gradients}) {
    for (const double use : *ring) compute_.free = std::max(compute_.free, use);
  }
  rings_ = next_ != nullptr
               ? std::move(next_)
               : std::make_unique<Rings>(shape_.prefetch_depth, compute_.free);
  for (auto* ring : {&rings_->staging, &rings_->inputs, &rings_->outer,
                     &rings_->blocks, &rings_->gradients}) {
    std::ranges::replace(*ring, kBlocked, compute_.free);
  }
  // Copies to the GPU that are not issued yet begin now at the earliest.
  in_.free = std::max(in_.free, compute_.free);
  return compute_.free;
}

void Simulation::Prepare(Phase phase) {
  next_ = std::make_unique<Rings>(shape_.prefetch_depth, kBlocked);
  const EarlySlots early = shape_.early(phase);
  for (const auto& [ring, slots] : {std::pair(&next_->inputs, early.inputs),
                                    std::pair(&next_->blocks, early.blocks),
                                    std::pair(&next_->outer, early.outer)}) {
    std::fill_n(ring->begin(), slots, compute_.free);
  }
}

void Simulation::FetchTokens() {
  const double seconds =
      In(2 * Bytes({Class::kInput}) + Bytes({Class::kO}) + Saved());
  saved_rows_.emplace(&in_, &compute_, &latest().inputs, chunks_,
                      [this, seconds](size_t k, auto& fetch) {
                        if (next_ != nullptr && Last(k)) return false;
                        fetch = {seconds, 0};
                        return true;
                      });
}

void Simulation::Forward() {
  const int64_t x = Bytes({Class::kInput});
  auto inputs = Fetches(&rings_->inputs, chunks_, [&](size_t k, auto& fetch) {
    fetch = {In(x), hidden_[k]};
    return true;
  });
  std::vector<size_t> earlier;  // the key chunk of each off-diagonal block
  for (size_t j = 0; j < chunks_; ++j) {
    for (size_t i = 0; i < j; ++i) earlier.push_back(i);
  }
  size_t sent = 0;
  bool any = false;
  auto blocks =
      Fetches(&rings_->blocks, earlier.size(), [&](size_t k, auto& fetch) {
        if (!any || earlier[k] > sent) return false;
        fetch = {In(Keys()), keys_[earlier[k]]};
        return true;
      });
  std::vector<double> output(chunks_);
  for (size_t m = 0; m < chunks_; ++m) {
    inputs.Next();
    BeginStaging();
    Compute(chunk_.qkv);
    keys_[m] = Flush(Keys() + shape_.stored_bytes(Class::kQ, 0) +
                     shape_.stored_bytes(Class::kNorm1, 0));
    sent = m;
    any = true;
    blocks.Pump();
    Compute(chunk_.block / 2);
    for (size_t i = 0; i < m; ++i) {
      blocks.Next();
      Compute(chunk_.block);
      blocks.Done();
    }
    Flush(Bytes({Class::kO, Class::kLse}));
    Compute(chunk_.post);
    output[m] = Flush(x + Saved());
    inputs.Done();
  }
  hidden_ = output;
}

void Simulation::Tokens() {
  const int64_t x = Bytes({Class::kInput});
  if (!saved_rows_.has_value()) FetchTokens();
  int64_t again = 0;
  for (const Class which : kHeadClasses) {
    again += shape_.dropped_bytes(which, 0);
  }
  for (size_t m = 0; m < chunks_; ++m) {
    saved_rows_->Next();
    BeginStaging();
    if (Last(m)) {
      Prepare(Phase::kAttention);
      FetchAttention();
    }
    Compute(chunk_.post_backward);
    Flush(x + Bytes({Class::kOutputGradient}) + again);
    saved_rows_->Done();
  }
  saved_rows_.reset();
}

void Simulation::FetchAttention() {
  const bool keys_outer = shape_.order == BackwardOrder::kKeysOuter;
  const double keys = In(Keys()), queries = In(Queries());
  const double sums = In(Bytes(
      {Class::kQueryGradient, Class::kKeyGradient, Class::kValueGradient}));
  sent_.clear();
  steps_.clear();
  for (size_t o = 0; o < chunks_; ++o) {
    for (size_t n = o; n < chunks_; ++n) steps_.push_back({o, n});
  }
  const auto unsent = [this](size_t m) { return next_ != nullptr && Last(m); };
  outer_.emplace(&in_, &compute_, &latest().outer, chunks_,
                 [=](size_t k, auto& fetch) {
                   if (unsent(k)) return false;
                   fetch = {keys_outer ? keys : queries, 0};
                   return true;
                 });
  inner_.emplace(&in_, &compute_, &latest().blocks, steps_.size(),
                 [=, this](size_t k, auto& fetch) {
                   if (unsent(steps_[k].inner)) return false;
                   fetch = {keys_outer ? queries : keys, 0};
                   return true;
                 });
  gradients_.emplace(&in_, &compute_, &latest().gradients, steps_.size(),
                     [=, this](size_t k, auto& fetch) {
                       const auto [o, n] = steps_[k];
                       if (o == 0) return true;
                       const auto found = sent_.find(n);
                       if (found == sent_.end() || found->second.first != o - 1)
                         return false;
                       fetch = {sums, found->second.second};
                       return true;
                     });
}

void Simulation::Attention() {
  const int64_t x = Bytes({Class::kInput});
  const int64_t sums = Bytes(
      {Class::kQueryGradient, Class::kKeyGradient, Class::kValueGradient});
  if (outer_.has_value()) {
    for (auto* fetches : {&outer_, &inner_, &gradients_}) (*fetches)->Pump();
  } else {
    FetchAttention();
  }
  auto inputs = Fetches(&rings_->inputs, chunks_, [&](size_t, auto& fetch) {
    fetch = {In(2 * x + shape_.stored_bytes(Class::kNorm1, 0)), 0};
    return true;
  });
  size_t next = 0;
  for (size_t o = 0; o < chunks_; ++o) {
    outer_->Next();
    for (; next < steps_.size() && steps_[next].outer == o; ++next) {
      inner_->Next();
      gradients_->Next();
      const bool diagonal = steps_[next].inner == o;
      Compute(diagonal ? chunk_.block_backward / 2 : chunk_.block_backward);
      inner_->Done();
      if (diagonal || sums == 0) {
        sent_[steps_[next].inner] = {o, compute_.free};
        gradients_->Done();
      } else {
        const double out = Send(sums);
        sent_[steps_[next].inner] = {o, out};
        gradients_->Done(out);
      }
    }
    outer_->Done();
    inputs.Next();
    BeginStaging();
    if (Last(o)) {
      Prepare(Phase::kTokens);
      FetchTokens();
    }
    Compute(chunk_.qkv_backward);
    Flush(x);
    inputs.Done();
  }
  for (auto* fetches : {&outer_, &inner_, &gradients_}) fetches->reset();
}

}  // namespace

LayerSeconds SimulateLayer(const StreamShape& shape, const ChunkCompute& chunk,
                           const LinkSpeeds& links) {
  Simulation simulation(shape, chunk, links);
  LayerSeconds seconds;
  double before = 0;
  for (int layer = 0; layer < 4; ++layer) {  // until the rings have settled
    simulation.Forward();
    seconds.forward = simulation.now() - before;
    before = simulation.now();
  }
  simulation.Enter();
  for (int layer = 0; layer < 2; ++layer) {  // the first prepares the second
    before = simulation.now();
    simulation.Tokens();
    seconds.tokens = simulation.Enter() - before;
    before = simulation.now();
    simulation.Attention();
    seconds.attention = simulation.Enter() - before;
  }
  return seconds;
}

}  // namespace sluice::stream
