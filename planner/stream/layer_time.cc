#include "planner/stream/layer_time.h"

#include <algorithm>

#include "planner/stream/profile.h"

namespace sluice::stream {
namespace {

double Over(int64_t bytes, double speed) {
  return speed > 0 ? static_cast<double>(bytes) / speed : 0;
}

int64_t SavedPost(const StreamShape& shape, int64_t m) {
  return Sum(kPostClasses,
             [&](Class which) { return shape.stored_bytes(which, m); });
}

// A phase as a three-stage pipeline: copies in, compute, copies out. The phase
// takes as long as the longest path through chunks and stages. That is exact
// for equal chunks.
struct Pipeline {
  double in = 0, compute = 0, out = 0;  // seconds of the whole phase
  double first_in = 0, first_compute = 0;
  double last_compute = 0, last_out = 0;

  double Seconds() const {
    return std::max({first_in + compute + last_out,
                     in + last_compute + last_out,
                     first_in + first_compute + out});
  }
};

class LayerTime {
 public:
  LayerTime(const StreamShape& shape, const LayerCompute& compute,
            const LinkSpeeds& links)
      : shape_(shape),
        compute_(compute),
        links_(links),
        traffic_(CountTraffic(shape)),
        last_(shape.chunks() - 1) {}

  // In a ring of p slots, p blocks are done in the time in which one block is
  // fetched and used. All other rings have two slots, so their copies and
  // compute overlap completely, and the longer of the two counts. With at least
  // two chunks, the next layer's first chunk is fetched while this layer's last
  // chunk is computed.
  double Forward() const {
    const double depth = shape_.prefetch_depth;
    const double keys =
        In(traffic_.forward.in - shape_.moved_bytes(Class::kInput));
    const double compute =
        compute_.forward +
        std::max({compute_.keys, keys, (compute_.keys + keys) / depth});
    const double out = Out(traffic_.forward.out);
    if (last_ > 0) return std::max({compute, In(traffic_.forward.in), out});
    const int64_t x = shape_.moved_bytes(Class::kInput);
    return In(x) + std::max(compute + Out(x + SavedPost(shape_, 0)), out);
  }

  double Tokens() const {
    const double first_in = In(TokensIn(0));
    const double early = shape_.early(Phase::kTokens).inputs > 0 ? first_in : 0;
    return Early({.in = In(traffic_.tokens.in - ProjectionsIn()),
                  .compute = compute_.tokens,
                  .out = Out(traffic_.tokens.out - ProjectionsOut()),
                  .first_in = first_in,
                  .first_compute = compute_.tokens * Share(0),
                  .last_compute = compute_.tokens * Share(last_),
                  .last_out = Out(TokensOut(last_))},
                 early, early,
                 compute_.projections * Share(last_) +
                     Out(shape_.moved_bytes(Class::kInput, last_)))
        .Seconds();
  }

  // A slot serves every `depth`-th block. Between two uses of a slot lie a
  // block's compute, the copy out of its sums while the next inner chunk is
  // fetched, and the fetch of that chunk's sums (copies in go in order).
  double Attention() const {
    const double depth = shape_.prefetch_depth;
    const double chunks = static_cast<double>(last_ + 1);
    const double diagonal = compute_.blocks / (chunks * chunks);
    const double projected = compute_.projections / chunks;
    const double both = In(FirstIn(2, 1));
    // The last chunk is never early: the previous phase still computes it.
    const EarlySlots slots = shape_.early(Phase::kAttention);
    const int64_t early_outer = std::min(slots.outer, last_);
    const int64_t early_inner = std::min(slots.blocks, last_);
    const double early = In(FirstIn(early_outer, early_inner));
    const double early_first =
        In(FirstIn(early_outer, std::min<int64_t>(early_inner, 1)));
    const bool block_is_early = early_outer > 0 && early_inner > 0;
    const double sums = In(traffic_.blocks.out), out = Out(traffic_.blocks.out);
    const double inner = std::max(0.0, In(traffic_.blocks.in) - sums - both);
    const double blocks =
        std::max(compute_.blocks,
                 (compute_.blocks + std::max(inner, out) + sums) / depth);
    return Early({.in = In(traffic_.blocks.in + ProjectionsIn()),
                  .compute = blocks + compute_.projections + SumsWaited(blocks),
                  .out = out + Out(ProjectionsOut()),
                  .first_in = block_is_early ? early_first : both,
                  .first_compute = diagonal,
                  // With one chunk, the diagonal is the first compute.
                  .last_compute = projected + (last_ > 0 ? diagonal : 0),
                  .last_out = Out(shape_.moved_bytes(Class::kInput, 0))},
                 early_first, early,
                 compute_.tokens * Share(last_) + Out(TokensOut(last_)))
        .Seconds();
  }

 private:
  double In(int64_t bytes) const { return Over(bytes, links_.h2d); }
  double Out(int64_t bytes) const { return Over(bytes, links_.d2h); }
  // Chunk m's fraction of the sequence's rows.
  double Share(int64_t m) const {
    return static_cast<double>(shape_.rows(m)) /
           static_cast<double>(last_ * shape_.rows(0) + shape_.rows(last_));
  }
  int64_t TokensIn(int64_t m) const {
    return 2 * shape_.moved_bytes(Class::kInput, m) +
           shape_.moved_bytes(Class::kO, m) + SavedPost(shape_, m);
  }
  int64_t TokensOut(int64_t m) const {
    return shape_.moved_bytes(Class::kInput, m) +
           shape_.moved_bytes(Class::kOutputGradient, m) +
           Sum(kHeadClasses, [&](Class which) {
             return shape_.moved_bytes(which, m) -
                    shape_.stored_bytes(which, m);
           });
  }
  // Return the bytes that qkv.backward fetches and sends.
  int64_t ProjectionsIn() const {
    return 2 * shape_.moved_bytes(Class::kInput) +
           shape_.swapped_bytes(Class::kNorm1);
  }
  int64_t ProjectionsOut() const { return shape_.moved_bytes(Class::kInput); }
  // Lets `all` seconds of the phase's copies, and `first` seconds of its
  // first_in, overlap the `window` in which the previous phase computes its
  // last chunk and sends the results.
  static Pipeline Early(Pipeline phase, double first, double all,
                        double window) {
    phase.in -= std::min(all, window);
    phase.first_in -= std::min(first, window);
    return phase;
  }
  // Returns the bytes of the first `outer` and `inner` slots of the two sides.
  // If no slot is filled early, two outer slots and one inner slot are fetched
  // before the first block.
  int64_t FirstIn(int64_t outer, int64_t inner) const {
    const auto side = [this](bool keys, int64_t m) {
      return keys ? shape_.moved_bytes(kKeyPair, m)
                  : shape_.moved_bytes(kQuerySide, m);
    };
    const bool keys_outer = shape_.order == BackwardOrder::kKeysOuter;
    int64_t bytes = inner * side(!keys_outer, keys_outer ? 0 : last_);
    for (int64_t n = 0; n < std::min(outer, last_ + 1); ++n) {
      bytes += side(keys_outer, keys_outer ? n : last_ - n);
    }
    return bytes;
  }

  // Returns the seconds that blocks wait for sums. The sums of the inner side
  // are sent after an outer chunk's last block and fetched again before the
  // next outer chunk's block of the same inner chunk. Near the end, too few
  // blocks lie between sending and fetching. `blocks`: seconds of all blocks at
  // the rate that copies allow.
  double SumsWaited(double blocks) const {
    if (last_ == 0) return 0;
    const int64_t sums = shape_.moved_bytes(kSums, 0);
    const double chunks = static_cast<double>(last_ + 1);
    const double block = 2 * blocks / (chunks * chunks);
    double waited = 0;
    double left = Out(sums) + In(sums) - compute_.projections / chunks;
    for (int64_t between = 0; between < last_ && left > 0; ++between) {
      waited += left;
      if (block <= 0) return waited * static_cast<double>(last_);
      left -= block;
    }
    return waited;
  }

  const StreamShape& shape_;
  const LayerCompute& compute_;
  const LinkSpeeds& links_;
  const LayerTraffic traffic_;
  const int64_t last_;  // the last chunk
};

// Returns the seconds that a layer takes to recompute what it dropped.
double RecomputeSeconds(const StreamOptions& options, const StreamShape& shape,
                        const std::vector<plan::SegmentKind>& recorded) {
  double recompute = 0;
  for (const plan::SkeletalClass& c : Profile(options, recorded).classes) {
    const ClassFractions f = shape.fractions(FindClass(c.name)->which);
    recompute += c.recompute_seconds * std::max(0.0, 1 - f.keep - f.swap);
  }
  return recompute;
}

}  // namespace

LayerSeconds TimeLayer(const StreamShape& shape, const LayerCompute& compute,
                       const LinkSpeeds& links) {
  const LayerTime time(shape, compute, links);
  return {time.Forward(), time.Tokens(), time.Attention()};
}

double TimeRerun(const StreamOptions& options, double keys, double forward,
                 const LinkSpeeds& links) {
  const auto layers = static_cast<double>(StreamShape(options).layers_rerun());
  if (layers == 0) return 0;
  const ChunkLayout& all = options.layout;
  StreamOptions first = options;
  first.layout = ChunkLayout(
      std::min(options.rerun_chunks * all.max_rows(), all.seq_len()),
      all.max_rows(), all.ranks());
  first.rerun_chunks = 0;
  std::erase_if(first.fractions,
                [](const auto& f) { return f.second.keep > 0; });
  return layers *
         TimeLayer(StreamShape(first),
                   {.keys = keys / layers, .forward = forward / layers}, links)
             .forward;
}

// Assumes that the embedding's rows are sent through two slots, and that the
// last layer's output is sent before the loss fetches it.
double TimeEnds(const StreamShape& shape, const EndsCompute& compute,
                const LinkSpeeds& links) {
  const int64_t last = shape.chunks() - 1;
  const int64_t x = shape.moved_bytes(Class::kInput);
  const int64_t left =
      shape.moved_bytes(Class::kInput, last) + SavedPost(shape, last);
  const double in = Over(x, links.h2d), out = Over(x, links.d2h);
  const double first = Over(shape.moved_bytes(Class::kInput, 0), links.h2d);
  return std::max(compute.embed, out) + Over(left, links.d2h) + first +
         std::max({compute.loss, in - first, out}) +
         std::max(compute.embed_backward, in);
}

RecordedSeconds::RecordedSeconds(
    const std::vector<plan::SegmentKind>& recorded) {
  for (const plan::SegmentKind& kind : recorded) {
    once_[kind.name] = kind.seconds;
  }
}

double RecordedSeconds::Of(Segment which, const Executions& count) const {
  const auto once = [&](bool full) {
    const auto found = once_.find(KindOf(which, full));
    return found != once_.end() ? found->second : 0;
  };
  return static_cast<double>(count.full) * once(true) +
         static_cast<double>(count.tail) * once(false);
}

double StepSeconds(const StreamOptions& options,
                   const std::vector<plan::SegmentKind>& recorded,
                   const LinkSpeeds& links) {
  const StreamShape shape(options);
  const RecordedSeconds seconds(recorded);
  const auto of = [&](Segment which) {
    return seconds.Of(which, CountExecutions(shape, which));
  };
  const auto rerun_of = [&](Segment which) {
    return seconds.Of(which, CountRerun(shape, which));
  };
  using enum Segment;
  const LayerCompute layer = {
      .keys = of(kOffdiagonalForward),
      .forward = of(kQkvForward) + of(kDiagonalForward) + of(kPostForward),
      .tokens = of(kPostBackward) + RecomputeSeconds(options, shape, recorded),
      .blocks = of(kDiagonalBackward) + of(kOffdiagonalBackward),
      .projections = of(kQkvBackward)};
  const EndsCompute ends = {.embed = of(kEmbedForward),
                            .loss = of(kLoss),
                            .embed_backward = of(kEmbedBackward)};
  const double rerun =
      TimeRerun(options, rerun_of(kOffdiagonalForward),
                rerun_of(kQkvForward) + rerun_of(kDiagonalForward) +
                    rerun_of(kPostForward),
                links);
  return static_cast<double>(shape.layers) *
             TimeLayer(shape, layer, links).total() +
         rerun + TimeEnds(shape, ends, links);
}

}  // namespace sluice::stream
