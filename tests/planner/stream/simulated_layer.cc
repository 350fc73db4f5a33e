#include "tests/planner/stream/simulated_layer.h"

#include <algorithm>
#include <map>
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
    if (!program_(issued_, fetch)) return;
    double& slot = (*slots_)[issued_ % slots_->size()];
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

// The rings of a phase: each slot's last use.
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
        rings_(shape.prefetch_depth, 0),
        chunks_(static_cast<size_t>(shape.chunks())),
        hidden_(chunks_),
        keys_(chunks_) {}

  void Forward();
  void Tokens();
  void Attention();
  // What is issued is over, and the rings are cut anew.
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
    compute_.free = std::max(compute_.free, rings_.staging[staged_]);
  }
  double Flush(int64_t bytes) {
    if (bytes > 0) rings_.staging[staged_] = Send(bytes);
    return rings_.staging[staged_];
  }
  SimulatedFetches Fetches(std::vector<double>* ring, size_t count,
                           SimulatedFetches::Program program) {
    return {&in_, &compute_, ring, count, std::move(program)};
  }

  const StreamShape& shape_;
  const ChunkCompute& chunk_;
  const LinkSpeeds& links_;
  Engine in_, compute_, out_;
  Rings rings_;
  size_t staged_ = 0;
  size_t chunks_;
  // When bytes of a chunk are in host memory.
  std::vector<double> hidden_, keys_;
};

double Simulation::Enter() {
  for (const auto* ring : {&rings_.staging, &rings_.inputs, &rings_.outer,
                           &rings_.blocks, &rings_.gradients}) {
    for (const double use : *ring) compute_.free = std::max(compute_.free, use);
  }
  rings_ = Rings(static_cast<size_t>(shape_.prefetch_depth), compute_.free);
  return compute_.free;
}

void Simulation::Forward() {
  const int64_t x = Bytes({Class::kInput});
  auto inputs = Fetches(&rings_.inputs, chunks_, [&](size_t k, auto& fetch) {
    fetch = {In(x), hidden_[k]};
    return true;
  });
  std::vector<size_t> earlier;  // key chunks, block by block
  for (size_t j = 0; j < chunks_; ++j) {
    for (size_t i = 0; i < j; ++i) earlier.push_back(i);
  }
  size_t sent = 0;
  bool any = false;
  auto blocks =
      Fetches(&rings_.blocks, earlier.size(), [&](size_t k, auto& fetch) {
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
  auto inputs = Fetches(&rings_.inputs, chunks_, [&](size_t, auto& fetch) {
    fetch = {In(2 * x + Bytes({Class::kO}) + Saved()), 0};
    return true;
  });
  int64_t again = 0;
  for (const Class which : kHeadClasses) {
    again += shape_.dropped_bytes(which, 0);
  }
  for (size_t m = 0; m < chunks_; ++m) {
    inputs.Next();
    BeginStaging();
    Compute(chunk_.post_backward);
    Flush(x + Bytes({Class::kOutputGradient}) + again);
    inputs.Done();
  }
}

void Simulation::Attention() {
  const bool keys_outer = shape_.order == BackwardOrder::kKeysOuter;
  const int64_t x = Bytes({Class::kInput});
  const int64_t sums = Bytes(
      {Class::kQueryGradient, Class::kKeyGradient, Class::kValueGradient});
  struct Step {
    size_t outer, inner;
  };
  std::vector<Step> steps;
  for (size_t o = 0; o < chunks_; ++o) {
    for (size_t n = o; n < chunks_; ++n) steps.push_back({o, n});
  }
  auto outer = Fetches(&rings_.outer, chunks_, [&](size_t, auto& fetch) {
    fetch = {In(keys_outer ? Keys() : Queries()), 0};
    return true;
  });
  auto inner = Fetches(&rings_.blocks, steps.size(), [&](size_t, auto& fetch) {
    fetch = {In(keys_outer ? Queries() : Keys()), 0};
    return true;
  });
  std::map<size_t, std::pair<size_t, double>> sent;  // by inner: outer, when
  auto gradients =
      Fetches(&rings_.gradients, steps.size(), [&](size_t k, auto& fetch) {
        const auto [o, n] = steps[k];
        if (o == 0) return true;
        const auto found = sent.find(n);
        if (found == sent.end() || found->second.first != o - 1) return false;
        fetch = {In(sums), found->second.second};
        return true;
      });
  auto inputs = Fetches(&rings_.inputs, chunks_, [&](size_t, auto& fetch) {
    fetch = {In(2 * x + shape_.stored_bytes(Class::kNorm1, 0)), 0};
    return true;
  });
  size_t next = 0;
  for (size_t o = 0; o < chunks_; ++o) {
    outer.Next();
    for (; next < steps.size() && steps[next].outer == o; ++next) {
      inner.Next();
      gradients.Next();
      const bool diagonal = steps[next].inner == o;
      Compute(diagonal ? chunk_.block_backward / 2 : chunk_.block_backward);
      inner.Done();
      if (diagonal || sums == 0) {
        sent[steps[next].inner] = {o, compute_.free};
        gradients.Done();
      } else {
        const double out = Send(sums);
        sent[steps[next].inner] = {o, out};
        gradients.Done(out);
      }
    }
    outer.Done();
    inputs.Next();
    BeginStaging();
    Compute(chunk_.qkv_backward);
    Flush(x);
    inputs.Done();
  }
}

}  // namespace

LayerSeconds SimulateLayer(const StreamShape& shape, const ChunkCompute& chunk,
                           const LinkSpeeds& links) {
  Simulation simulation(shape, chunk, links);
  LayerSeconds seconds;
  double before = 0;
  for (int layer = 0; layer < 4; ++layer) {  // what goes round is settled
    simulation.Forward();
    seconds.forward = simulation.now() - before;
    before = simulation.now();
  }
  before = simulation.Enter();
  simulation.Tokens();
  seconds.tokens = simulation.Enter() - before;
  before = simulation.now();
  simulation.Attention();
  seconds.attention = simulation.Enter() - before;
  return seconds;
}

}  // namespace sluice::stream
