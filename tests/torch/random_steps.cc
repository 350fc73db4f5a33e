#include "tests/torch/random_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace sluice::runtime {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // Returns a number in [least, most], both included.
  int64_t Of(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % uint64_t(most - least + 1));
  }
  bool Once(int64_t in) { return Of(1, in) == 1; }
  template <typename T>
  T One(std::vector<T> values) {
    return values[static_cast<size_t>(Of(0, int64_t(values.size()) - 1))];
  }
  // Returns 0, 1/4, 1/2 and 1 more often than other fractions.
  double Fraction() {
    return Once(3) ? double(Of(0, 1000)) / 1000
                   : One<double>({0, 0.25, 0.5, 0.5, 1, 1});
  }

 private:
  std::mt19937_64 random_;
};

// Returns traits that the streamed layer supports, in any combination.
stream::ModelShape RandomModel(Dice& dice, int ranks) {
  stream::ModelShape m;
  m.layers = dice.Of(1, 2);
  // In a third of the shapes the ranks may share rows, not only heads.
  m.heads = dice.Once(3) ? dice.Of(1, 7) : ranks * dice.Of(1, 3);
  std::vector<int64_t> divisors;
  for (int64_t n = 1; n <= m.heads; ++n) {
    if (m.heads % n == 0) divisors.push_back(n);
  }
  m.kv_heads = dice.One(divisors);
  m.head_size = 2 * dice.Of(1, 12);
  m.hidden = m.heads * *m.head_size;
  if (dice.Once(3)) {
    m.hidden = dice.Of(4, 96);
  } else if (dice.Once(2)) {
    m.head_size.reset();
  }
  m.ffn = dice.Of(4, 200);
  m.vocab = dice.Of(2, 300);
  m = dice.Once(2) ? stream::Gpt(m) : stream::Llama(m);
  if (dice.Once(4)) m.gated = !m.gated;
  if (dice.Once(4)) m.tied = !m.tied;
  if (dice.Once(4)) {
    for (bool* bias : {&m.biases.q, &m.biases.k, &m.biases.v, &m.biases.o}) {
      *bias = dice.Once(2);
    }
  }
  m.biases.ffn = !m.gated && dice.Once(2);
  if (dice.Once(4)) m.rope ? m.rope.reset() : void(m.rope.emplace());
  return m;
}

// With odd widths, which no model has, oneDNN copies more than is predicted.
void MakeEven(stream::ModelShape& m) {
  for (int64_t* width : {&m.hidden, &m.ffn, &m.vocab}) *width += *width % 2;
}

stream::FractionMap RandomFractions(Dice& dice,
                                    const stream::ModelShape& model) {
  stream::FractionMap fractions;
  for (const stream::ClassTraits& c : stream::kClasses) {
    if (!c.of(model) || !dice.Once(3)) continue;
    stream::ClassFractions f{.keep = 0, .swap = dice.Fraction()};
    if (dice.Once(2)) {
      f.keep = c.keep == stream::Keep::kWhole ? 1 : dice.Fraction();
    }
    f.swap *= 1 - f.keep;
    if (c.keep == stream::Keep::kWhole) f.keep = std::floor(f.keep);
    if (!c.free()) f.swap = 1 - f.keep;
    fractions[c.name] = f;
  }
  return fractions;
}

// Changes a third of the steps to rerun chunks; free classes are then dropped.
void RerunSome(Dice& dice, StepCase& c) {
  if (!dice.Once(3)) return;
  const int64_t chunks = (c.seq_len + c.chunk - 1) / c.chunk;
  c.stream.rerun_chunks = dice.Of(1, chunks);
  c.model.layers = dice.Of(2, 5);
  c.stream.rerun_layers = dice.Of(1, c.model.layers);
  c.stream.alpha = 0;
  for (const stream::Class which : stream::kFreeClasses) {
    c.stream.fractions.erase(stream::Traits(which).name);
  }
}

}  // namespace

StepCase RandomStep(uint64_t seed) {
  Dice dice(seed);
  StepCase c;
  c.ranks = static_cast<int>(dice.One<int64_t>({1, 1, 1, 2, 2, 3, 4}));
  c.model = RandomModel(dice, c.ranks);
  c.dtype = dice.Once(2) ? at::kFloat : at::kBFloat16;
  // Causal blocks of more than 256 rows are split.
  c.chunk = dice.Once(8) ? dice.Of(250, 800) : dice.Of(1, 120);
  if (c.dtype == at::kBFloat16) {
    MakeEven(c.model);
    c.chunk = std::max<int64_t>(c.chunk, 64);
  }
  c.seq_len = c.chunk * dice.Of(1, c.chunk > 250 ? 2 : 6);
  if (dice.Once(2)) c.seq_len += dice.Of(0, c.chunk - 1);
  if (!c.model.rope) c.model.max_positions = c.seq_len + dice.Of(0, 9);
  c.stream.alpha = dice.Fraction();
  if (!dice.Once(3)) c.stream.fractions = RandomFractions(dice, c.model);
  if (dice.Once(10)) c.stream.fractions = stream::KeepEverything(c.model);
  if (dice.Once(2)) c.stream.order = stream::BackwardOrder::kQueriesOuter;
  c.stream.prefetch_depth = static_cast<int>(dice.Of(1, 4));
  if (dice.Once(3)) c.stream.ffn_chunk_rows = dice.Of(1, c.chunk + 5);
  if (dice.Once(2)) c.stream.loss_chunk_rows = dice.Of(1, 3 * c.chunk);
  c.stream.round_output = dice.Once(2);
  RerunSome(dice, c);
  return c;
}

std::string ToString(const StepCase& c) {
  const stream::ModelShape& m = c.model;
  const stream::Biases& b = m.biases;
  std::string line = fmt::format(
      "{} layers, hidden {}, {} heads of {}, {} kv heads, ffn {}{}, vocab "
      "{}{}, {}, {}, biases{}{}{}{}{}; {} tokens in chunks of {} on {} ranks, "
      "{}, "
      "{} outer, prefetch {}, ffn rows {}, loss rows {}, alpha {}{}, {} chunks "
      "again by {} layers",
      m.layers, m.hidden, m.heads, m.head_dim(), m.kv_heads, m.ffn,
      m.gated ? " gated" : "", m.vocab, m.tied ? " tied" : "",
      m.norm == stream::NormKind::kRmsNorm ? "RMSNorm" : "LayerNorm",
      m.rope ? "RoPE" : fmt::format("{} positions", m.max_positions),
      b.q ? " q" : "", b.k ? " k" : "", b.v ? " v" : "", b.o ? " o" : "",
      b.ffn ? " ffn" : "", c.seq_len, c.chunk, c.ranks,
      c.dtype == at::kFloat ? "fp32" : "bf16",
      c.stream.order == stream::BackwardOrder::kKeysOuter ? "keys" : "queries",
      c.stream.prefetch_depth, c.stream.ffn_chunk_rows,
      c.stream.loss_chunk_rows, c.stream.alpha,
      c.stream.round_output ? ", o rounded" : "", c.stream.rerun_chunks,
      c.stream.rerun_layers);
  for (const auto& [name, f] : c.stream.fractions) {
    line += fmt::format(", {} keep {} swap {}", name, f.keep, f.swap);
  }
  return line;
}

}  // namespace sluice::runtime
