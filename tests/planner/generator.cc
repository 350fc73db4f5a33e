#include "tests/planner/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

namespace sluice::planner {
namespace {

constexpr int64_t kHalf = 2;  // bytes of bf16
constexpr int64_t kFull = 4;  // bytes of fp32

// Records requests in order; the clock advances with each request.
class GeneratedTrace {
 public:
  using Handle = size_t;

  GeneratedTrace(double jitter, uint32_t seed)
      : random_(seed), jitter_(jitter) {
    out_.trace.alignment = Bytes(512);
    out_.time_unit = "request";
  }

  Handle Malloc(std::string name, int64_t bytes) {
    out_.trace.buffers.push_back({.id = static_cast<int64_t>(out_.names.size()),
                                  .lower = now_++,
                                  .size = Bytes(Jittered(bytes))});
    out_.names.push_back(prefix_ + std::move(name));
    return out_.names.size() - 1;
  }
  void Free(Handle buffer) { out_.trace.buffers[buffer].upper = now_++; }
  // Frees buffers in random order, as a framework does after an operator.
  void FreeAll(std::vector<Handle> buffers) {
    while (!buffers.empty()) {
      const size_t k = random_() % buffers.size();
      Free(buffers[k]);
      buffers.erase(buffers.begin() + static_cast<int64_t>(k));
    }
  }

  void Prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Restarts the random numbers, so that all layers of a model make equal
  // requests.
  void Seed(uint32_t seed) { random_.seed(seed); }

  NamedTrace Take() {
    out_.trace.end = now_ + 1;
    for (plan::Buffer& b : out_.trace.buffers) {
      if (b.upper == 0) b.upper = out_.trace.end;
    }
    return std::move(out_);
  }

 private:
  int64_t Jittered(int64_t bytes) {
    if (jitter_ <= 0) return std::max<int64_t>(bytes, 1);
    const double part = static_cast<double>(random_() % 4096) / 4095;
    const double factor = 1 - jitter_ + 2 * jitter_ * part;
    return static_cast<int64_t>(static_cast<double>(bytes) * factor) + 1;
  }

  std::mt19937 random_;
  double jitter_;
  int64_t now_ = 0;
  std::string prefix_;
  NamedTrace out_;
};

using Handle = GeneratedTrace::Handle;

// Buffers that a layer's forward keeps for its backward.
using Kept = std::vector<Handle>;

// Makes the requests of a layer. Sizes are of one rank and one chunk of its
// tokens.
class Layer {
 public:
  Layer(const IterationSpec& spec, GeneratedTrace& recorder)
      : spec_(spec),
        r_(recorder),
        tokens_(spec.tokens / spec.context_parallel / spec.chunks),
        hidden_(tokens_ * spec.hidden * kHalf),
        // With sequence parallelism a rank has only its share of the tokens
        // outside the tensor-parallel parts.
        shard_(hidden_ / spec.tensor_parallel),
        query_(hidden_ / spec.tensor_parallel),
        key_(std::max<int64_t>(query_ * spec.kv_heads / spec.heads, 512)),
        lse_(tokens_ * spec.heads / spec.tensor_parallel * kFull),
        ffn_(tokens_ * spec.ffn * kHalf / spec.tensor_parallel) {}

  // Runs all chunks. Returns the layer's output, and adds the buffers for
  // backward to `kept`.
  Handle Forward(Kept* kept) {
    const Handle out = r_.Malloc("output", shard_ * spec_.chunks);
    for (int c = 0; c < spec_.chunks; ++c) {
      ForwardAttention(c, kept);
      ForwardFfn(kept);
    }
    return out;
  }

  // Returns the gradient of the layer's input. Frees the kept buffers and
  // `gradient`, the gradient of the layer's output.
  Handle Backward(Kept* kept, Handle gradient) {
    const Handle out = r_.Malloc("grad.input", shard_ * spec_.chunks);
    const Handle sum = spec_.chunks > 1
                           ? r_.Malloc("grad.kv.sum", 2 * key_ * spec_.chunks)
                           : gradient;
    const size_t share = kept->size() / static_cast<size_t>(spec_.chunks);
    for (int c = spec_.chunks; c-- > 0;) {
      const Kept recomputed = spec_.swapped ? Recompute() : Kept{};
      BackwardFfn();
      BackwardAttention(c);
      r_.FreeAll(recomputed);
      const size_t from = static_cast<size_t>(c) * share;
      r_.FreeAll({kept->begin() + static_cast<int64_t>(from), kept->end()});
      kept->resize(from);
    }
    if (sum != gradient) r_.Free(sum);
    r_.Free(gradient);
    return out;
  }

  int64_t output_bytes() const { return shard_ * spec_.chunks; }
  // Returns the bytes of a rounding buffer.
  int64_t skeletal_bytes() const {
    return spec_.chunks * (3 * shard_ + 2 * query_ + 2 * key_ + lse_ +
                           (spec_.swiglu ? 3 : 2) * ffn_);
  }

 private:
  // Keeps a tensor for backward: in a rounding buffer if skeletal tensors are
  // swapped, else as a buffer of its own.
  void Keep(std::string name, int64_t bytes, Kept* kept) {
    if (!spec_.swapped) kept->push_back(r_.Malloc(std::move(name), bytes));
  }

  void ForwardAttention(int chunk, Kept* kept) {
    Keep("norm1", shard_, kept);
    kept->push_back(r_.Malloc("rstd1", tokens_ * kFull));
    const Handle gathered = Gather("norm1.gathered");
    const Handle qkv = r_.Malloc("qkv", query_ + 2 * key_);
    r_.Free(gathered);
    Keep("q", query_, kept);
    const Handle rotary = r_.Malloc("rotary", query_ + key_);
    Keep("k", key_, kept);
    Keep("v", key_, kept);
    r_.FreeAll({qkv, rotary});
    Keep("attention", query_, kept);
    Keep("lse", lse_, kept);
    for (int step = 0; step <= chunk; ++step) AttentionBlock(step);
    const Handle projected = r_.Malloc("projected", hidden_);
    const Handle reduced = Reduce("projected.reduced");
    r_.Free(projected);
    if (spec_.dropout) Keep("mask1", shard_ / kHalf, kept);
    Keep("residual", shard_, kept);
    if (reduced != projected && spec_.tensor_parallel > 1) r_.Free(reduced);
  }

  // Attends to one block of k and v. With context parallelism the next block
  // arrives during the computation.
  void AttentionBlock(int step) {
    for (int hop = 0; hop < spec_.context_parallel; ++hop) {
      std::vector<Handle> scratch;
      if (hop + 1 < spec_.context_parallel || step > 0) {
        scratch.push_back(r_.Malloc("kv.next", 2 * key_));
      }
      if (hop > 0 || step > 0) {
        scratch.push_back(r_.Malloc("block.out", query_));
        scratch.push_back(r_.Malloc("block.lse", lse_));
      }
      scratch.push_back(r_.Malloc("rng", 16));
      r_.FreeAll(scratch);
    }
  }

  void ForwardFfn(Kept* kept) {
    Keep("norm2", shard_, kept);
    kept->push_back(r_.Malloc("rstd2", tokens_ * kFull));
    const Handle gathered = Gather("norm2.gathered");
    const Handle packed =
        r_.Malloc("ffn.packed", (spec_.swiglu ? 2 : 1) * ffn_);
    r_.Free(gathered);
    Keep("up", ffn_, kept);
    if (spec_.swiglu) Keep("gate", ffn_, kept);
    Keep("activated", ffn_, kept);
    const Handle down = r_.Malloc("down", hidden_);
    r_.Free(packed);
    if (spec_.dropout) Keep("mask2", shard_ / kHalf, kept);
    if (spec_.tensor_parallel > 1) r_.Free(Reduce("down.reduced"));
    r_.Free(down);
  }

  Handle Gather(const char* name) {
    return r_.Malloc(name, spec_.tensor_parallel > 1 ? hidden_ : shard_);
  }
  Handle Reduce(const char* name) {
    return spec_.tensor_parallel > 1 ? r_.Malloc(name, shard_) : Handle{0};
  }

  // Recomputes the half of the tokens that is not swapped.
  Kept Recompute() {
    Kept made;
    for (const auto& [name, bytes] :
         {std::pair<const char*, int64_t>{"re.norm1", shard_},
          {"re.q", query_},
          {"re.kv", 2 * key_},
          {"re.norm2", shard_},
          {"re.up", ffn_},
          {"re.activated", ffn_}}) {
      made.push_back(r_.Malloc(name, std::max<int64_t>(bytes / 2, 512)));
    }
    return made;
  }

  void BackwardFfn() {
    const Handle gathered = Gather("grad.output.gathered");
    const Handle activated = r_.Malloc("grad.activated", ffn_);
    const Handle down_weight =
        r_.Malloc("grad.w.down",
                  spec_.hidden * spec_.ffn / spec_.tensor_parallel * kHalf);
    r_.Free(gathered);
    const Handle up = r_.Malloc("grad.up", ffn_);
    std::vector<Handle> done = {activated, down_weight};
    if (spec_.swiglu) {
      const Handle gate = r_.Malloc("grad.gate", ffn_);
      r_.FreeAll(std::exchange(done, {gate}));
    } else {
      r_.FreeAll(std::exchange(done, {}));
    }
    const Handle again = Gather("norm2.gathered.again");
    const Handle norm = r_.Malloc("grad.norm2", hidden_);
    const Handle up_weight =
        r_.Malloc("grad.w.up", (spec_.swiglu ? 2 : 1) * spec_.hidden *
                                   spec_.ffn / spec_.tensor_parallel * kHalf);
    done.insert(done.end(), {up, again, up_weight});
    r_.FreeAll(done);
    const Handle residual = r_.Malloc("grad.residual", shard_);
    const Handle gain = r_.Malloc("grad.gain2", spec_.hidden * kFull);
    r_.FreeAll({norm, residual, gain});
  }

  void BackwardAttention(int chunk) {
    const Handle gathered = Gather("grad.residual.gathered");
    const Handle out = r_.Malloc("grad.attention", query_);
    const Handle weight =
        r_.Malloc("grad.w.projection",
                  spec_.hidden * spec_.hidden / spec_.tensor_parallel * kHalf);
    r_.FreeAll({gathered, weight});
    const Handle delta = r_.Malloc("delta", lse_);
    const Handle query = r_.Malloc("grad.q", 2 * query_);  // fp32
    for (int step = 0; step <= chunk; ++step) BackwardBlock(step);
    const Handle key_value = r_.Malloc("grad.kv", 2 * key_);
    r_.FreeAll({delta, out});
    const Handle qkv = r_.Malloc("grad.qkv", query_ + 2 * key_);
    r_.FreeAll({query, key_value});
    const Handle again = Gather("norm1.gathered.again");
    const Handle norm = r_.Malloc("grad.norm1", hidden_);
    const Handle qkv_weight =
        r_.Malloc("grad.w.qkv",
                  spec_.hidden * (spec_.hidden / spec_.tensor_parallel) *
                      (spec_.heads + 2 * spec_.kv_heads) / spec_.heads * kHalf);
    r_.FreeAll({qkv, again, qkv_weight});
    const Handle gain = r_.Malloc("grad.gain1", spec_.hidden * kFull);
    r_.FreeAll({norm, gain});
  }

  void BackwardBlock(int step) {
    for (int hop = 0; hop < spec_.context_parallel; ++hop) {
      std::vector<Handle> scratch = {r_.Malloc("block.grad.q", query_),
                                     r_.Malloc("block.grad.kv", 2 * key_)};
      if (hop > 0 || step > 0) {
        scratch.push_back(r_.Malloc("kv.next", 2 * key_));
        scratch.push_back(r_.Malloc("grad.kv.next", 2 * key_));
      }
      r_.FreeAll(scratch);
    }
  }

  const IterationSpec& spec_;
  GeneratedTrace& r_;
  int64_t tokens_, hidden_, shard_, query_, key_, lse_, ffn_;
};

// Computes logits in fp32, in pieces, so that no buffer is far larger than a
// layer's tensor. Returns the gradient of the last hidden states.
Handle Loss(const IterationSpec& spec, GeneratedTrace& r,
            int64_t output_bytes) {
  const int pieces = std::max(spec.chunks, 2);
  const int64_t tokens = spec.tokens / spec.context_parallel / pieces;
  const int64_t logits = tokens * spec.vocabulary / spec.tensor_parallel;
  const Handle gradient = r.Malloc("loss.grad.hidden", output_bytes);
  const Handle norm = r.Malloc("loss.norm", output_bytes);
  for (int piece = 0; piece < pieces; ++piece) {
    const Handle half = r.Malloc("loss.logits", logits * kHalf);
    const Handle full = r.Malloc("loss.logits.fp32", logits * kFull);
    r.Free(half);
    const Handle rows = r.Malloc("loss.rows", tokens * kFull);
    const Handle soft = r.Malloc("loss.grad.logits", logits * kHalf);
    r.FreeAll({full, rows});
    const Handle part = r.Malloc("loss.grad.part", output_bytes / pieces);
    r.FreeAll({soft, part});
  }
  r.Free(norm);
  return gradient;
}

// Allocates temporaries for each layer, as fused optimizers do.
void Optimizer(const IterationSpec& spec, GeneratedTrace& r) {
  const Handle norms = r.Malloc("optimizer.norms", 4096);
  for (int layer = 0; layer < spec.layers; ++layer) {
    const Handle update =
        r.Malloc("optimizer.update",
                 spec.hidden * spec.hidden / spec.tensor_parallel * kFull);
    const Handle cast =
        r.Malloc("optimizer.cast",
                 spec.hidden * spec.hidden / spec.tensor_parallel * kHalf);
    r.FreeAll({update, cast});
  }
  r.Free(norms);
}

// Makes the requests of one micro-batch: forward, loss, backward.
void MicroBatch(const IterationSpec& spec, GeneratedTrace& r, uint32_t seed) {
  Layer layer(spec, r);
  const Handle ids = r.Malloc("ids", spec.tokens * 8);
  const Handle embedded = r.Malloc("embedded", layer.output_bytes());
  std::vector<Kept> kept(static_cast<size_t>(spec.layers));
  std::vector<Handle> outputs = {embedded};
  for (int l = 0; l < spec.layers; ++l) {
    r.Seed(seed);
    r.Prefix(fmt::format("layer {} ", l));
    outputs.push_back(layer.Forward(&kept[static_cast<size_t>(l)]));
    r.Prefix("");
    // A swapped layer's input is in the rounding buffer.
    if (spec.swapped) r.Free(outputs[outputs.size() - 2]);
  }
  Handle gradient = Loss(spec, r, layer.output_bytes());
  r.Free(outputs.back());
  outputs.pop_back();
  for (int l = spec.layers; l-- > 0;) {
    r.Seed(seed + 1);
    r.Prefix(fmt::format("layer {} ", l));
    gradient = layer.Backward(&kept[static_cast<size_t>(l)], gradient);
    r.Prefix("");
    if (!spec.swapped) {
      r.Free(outputs.back());
      outputs.pop_back();
    }
  }
  r.FreeAll({gradient, ids});
}

}  // namespace

NamedTrace GenerateIteration(const IterationSpec& spec, uint32_t seed) {
  GeneratedTrace r(spec.jitter, seed);
  std::vector<Handle> rounding;
  if (spec.swapped) {
    const int64_t bytes = Layer(spec, r).skeletal_bytes();
    rounding = {r.Malloc("rounding 0", bytes), r.Malloc("rounding 1", bytes)};
  }
  for (int m = 0; m < spec.micro_batches; ++m) MicroBatch(spec, r, seed);
  r.FreeAll(rounding);
  Optimizer(spec, r);
  return r.Take();
}

NamedTrace GenerateLayer(const IterationSpec& spec, LayerPass pass,
                         uint32_t seed) {
  GeneratedTrace r(spec.jitter, seed);
  Layer layer(spec, r);
  Kept kept;
  layer.Forward(&kept);
  if (pass == LayerPass::kForward) return r.Take();
  const Handle gradient = r.Malloc("grad.output", layer.output_bytes());
  const size_t before = gradient + 1;
  layer.Backward(&kept, gradient);
  NamedTrace both = r.Take();
  if (pass == LayerPass::kBoth) return both;
  // Returns only the backward's requests, and the buffers that the forward
  // keeps, which live from the start.
  const int64_t start = both.trace.buffers[gradient].lower;
  NamedTrace out{.trace = {.end = both.trace.end - start,
                           .alignment = both.trace.alignment},
                 .time_unit = both.time_unit};
  for (size_t k = 0; k < both.names.size(); ++k) {
    plan::Buffer b = both.trace.buffers[k];
    if (k < before && b.upper <= start) continue;
    b.id = static_cast<int64_t>(out.names.size());
    b.lower = std::max(b.lower, start) - start;
    b.upper -= start;
    out.trace.buffers.push_back(b);
    out.names.push_back(both.names[k]);
  }
  return out;
}

}  // namespace sluice::planner
