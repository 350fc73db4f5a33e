// Computes the sizes of one rank's streamed step: for every class the rows that
// are kept in HBM, stored in host memory and dropped (recomputed), and the
// bytes of every buffer. A run asks for memory and allocates by these sizes.
//
// A chunk of a class is resident if all of it stays in HBM and is used there,
// in place. It then has no host memory and is never copied.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "planner/stream/classes.h"
#include "planner/stream/loss_rows.h"
#include "planner/stream/options.h"
#include "proto/base/units.h"

namespace sluice::stream {

// Consecutive rows of a chunk in head layout, all stored or all dropped.
struct RowPiece {
  bool stored;
  int64_t row, rows;  // in the chunk
  // Index of the first row among the chunk's stored rows (or its dropped rows).
  int64_t place;
};

inline constexpr int64_t kSlotAlignment = 64;  // of every slot buffer
constexpr int64_t AlignSlot(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// The phases of a step. Each needs other rings, so the rings share one piece of
// HBM, which gets a new layout in each phase.
enum class Phase {
  kForward,    // embedding, layers forward
  kTokens,     // loss, and the token-local part of a layer's backward
  kAttention,  // blocks backward, projections backward, embedding backward
};
inline constexpr Phase kPhases[] = {Phase::kForward, Phase::kTokens,
                                    Phase::kAttention};

// Bytes of a slot of each ring, large enough for the largest record of the
// phase, and bytes of a chunk's fp32 sums. Staging, inputs and outer have two
// slots, blocks and gradients prefetch_depth slots. In backward's blocks,
// `outer` holds the outer side, `blocks` the inner side, and `gradients` the
// inner side's sums.
struct RingSizes {
  int64_t staging = 0, inputs = 0, blocks = 0, gradients = 0, outer = 0;
  // One query_sum (o, if it is stored narrower; then dq), and two key_sums (dk
  // and dv).
  int64_t query_sum = 0, key_sum = 0;
  // Returns the bytes of staging, inputs and sums, which come first in memory.
  // The other rings follow, the blocks last.
  int64_t Front() const { return 2 * (staging + inputs + key_sum) + query_sum; }
  int64_t Total(int prefetch_depth) const {
    return Front() + 2 * outer + prefetch_depth * (blocks + gradients);
  }
};

// The number of first slots of a backward phase, by ring, that lie behind the
// previous phase's Front. They are filled early, while that phase computes its
// last chunk (StreamState::Prepare in client/torch/stream).
struct EarlySlots {
  int64_t inputs = 0, blocks = 0, outer = 0;
};

class StreamShape {
 public:
  explicit StreamShape(const StreamOptions& options);

  int64_t chunks() const { return layout.chunks(); }
  bool has_tail() const { return !full(chunks() - 1); }
  bool full(int64_t m) const { return layout.rows(m) == layout.rows(0); }
  // Return the rows of chunk m over all ranks, and on this rank.
  int64_t rows(int64_t m) const { return layout.rows(m); }
  int64_t local(int64_t m) const { return layout.local_rows(m, rank); }
  // Return the queries of chunk m for which this rank computes attention: the
  // rows of its part's ranks (HeadLayout).
  int64_t first_query(int64_t m) const {
    return layout.local_offset(m, part_begin);
  }
  int64_t queries(int64_t m) const {
    return layout.local_offset(m, part_end) - first_query(m);
  }
  // Returns whether a class, or chunk m of it, is used in place in HBM: all
  // chunks of a class, or the last ones, but never a chunk that runs again.
  bool resident(Class which) const { return resident_from(which) == 0; }
  bool resident(Class which, int64_t m) const {
    return m >= resident_from(which);
  }
  int64_t resident_from(Class which) const {
    return resident_from_[static_cast<size_t>(which)];
  }
  // Return whether chunk m, or a layer, runs again in backward
  // (StreamOptions::rerun_chunks). The last group of layers does not, because
  // forward has just stored what backward needs.
  bool reruns(int64_t m) const { return m < rerun_chunks; }
  bool reruns_layer(int64_t layer) const {
    return rerun_chunks > 0 &&
           layer / rerun_layers < (layers - 1) / rerun_layers;
  }
  // Returns whether `layer` is the last one of a group that runs again. The
  // layer's backward follows its rerun.
  bool rerun_end(int64_t layer) const {
    return reruns_layer(layer) && (layer + 1) % rerun_layers == 0;
  }
  int64_t layers_rerun() const {
    return rerun_chunks > 0 ? (layers - 1) / rerun_layers * rerun_layers : 0;
  }
  // Return the number of sets of hidden states of chunk m, and the set with a
  // layer's input (layer == layers: with the last output). A chunk that runs
  // again has the groups' inputs, the inputs inside one group, and the last
  // output.
  int64_t hidden_sets(int64_t m) const {
    if (!reruns(m)) return layers + 1;
    return groups() + std::min(rerun_layers, layers);
  }
  int64_t hidden_set(int64_t layer, int64_t m) const {
    if (!reruns(m)) return layer;
    if (layer == layers) return hidden_sets(m) - 1;
    const int64_t inside = layer % rerun_layers;
    return inside == 0 ? layer / rerun_layers : groups() + inside - 1;
  }
  // Return the number of sets of saved tensors, and a layer's set. A chunk that
  // runs again has one set per layer of a group.
  int64_t saved_sets(int64_t m) const {
    return reruns(m) ? std::min(rerun_layers, layers) : layers;
  }
  int64_t saved_set(int64_t layer, int64_t m) const {
    return reruns(m) ? layer % rerun_layers : layer;
  }
  // Limits among a rank's rows of chunk m: the first `kept` rows stay in HBM,
  // the rows from there to `present` are stored in host memory, and the rest is
  // dropped. A resident class keeps none by rows, and all its rows are present.
  int64_t kept(Class which, int64_t m) const { return kept_of(which, m, rank); }
  int64_t kept_of(Class which, int64_t m, int64_t p) const;
  int64_t present(Class which, int64_t m) const {
    return present_of(which, m, rank);
  }
  int64_t present_of(Class which, int64_t m, int64_t p) const;
  // Return, for q, k and v in head layout, the stored and dropped rows that
  // this rank holds, and whether any rank drops rows (the same on all ranks).
  int64_t head_stored(Class which, int64_t m) const;
  int64_t head_dropped(Class which, int64_t m) const {
    return class_rows(which, m) - head_stored(which, m);
  }
  bool any_dropped(Class which, int64_t m) const {
    return StoredOf(which, m, 0, ranks) < rows(m);
  }
  const ClassFractions& fractions(Class which) const {
    return fractions_[static_cast<size_t>(which)];
  }
  // Returns chunk m of q, k or v in head layout, cut into pieces in row order.
  std::vector<RowPiece> pieces(Class which, int64_t m) const;

  // Return the groups of the loss and the chunks that a step or a probe runs,
  // and this rank's rows of a group.
  std::vector<LossGroup> loss_groups() const;
  std::vector<int64_t> active_chunks() const;
  int64_t loss_rows(const LossGroup& group) const;

  // A run of equal chunks. Sums over chunks and pairs of chunks are computed
  // run by run, so their cost does not depend on the sequence length.
  struct Run {
    int64_t first, end;
  };
  const std::vector<Run>& runs() const { return runs_; }
  int64_t SumOverChunks(auto bytes_of) const {
    int64_t sum = 0;
    for (const auto& [first, end] : runs_) {
      sum += (end - first) * bytes_of(first);
    }
    return sum;
  }
  // Returns the bytes of one row of a class, or 0 if this model or order does
  // not have the class.
  int64_t row_bytes(Class which) const;
  // Return this rank's rows of a class in chunk m, the bytes of these rows, and
  // the bytes of the class in all chunks.
  int64_t class_rows(Class which, int64_t m) const {
    const Rows held = Traits(which).rows;
    return held == Rows::kTokens    ? local(m)
           : held == Rows::kQueries ? queries(m)
                                    : rows(m);
  }
  int64_t chunk_bytes(Class which, int64_t m) const {
    return class_rows(which, m) * row_bytes(which);
  }
  int64_t class_bytes(Class which) const {
    return SumOverChunks([&](int64_t m) { return chunk_bytes(which, m); });
  }
  // Return the bytes that are copied when all of a class, or of several
  // classes, is fetched or sent, in chunk m or in all chunks.
  int64_t moved_bytes(Class which, int64_t m) const {
    return resident(which, m) ? 0 : chunk_bytes(which, m);
  }
  int64_t moved_bytes(Class which) const {
    return SumOverChunks([&](int64_t m) { return moved_bytes(which, m); });
  }
  int64_t moved_bytes(std::span<const Class> classes, auto... m) const {
    return Sum(classes, [&](Class which) { return moved_bytes(which, m...); });
  }
  // Return the rows that are stored in host memory, their bytes in chunk m and
  // in all chunks, and the bytes of dropped rows and of rows kept in HBM.
  int64_t stored(Class which, int64_t m) const;
  int64_t stored_bytes(Class which, int64_t m) const {
    return stored(which, m) * row_bytes(which);
  }
  int64_t swapped_bytes(Class which) const {
    return SumOverChunks([&](int64_t m) { return stored_bytes(which, m); });
  }
  int64_t dropped_bytes(Class which, int64_t m) const {
    return head_dropped(which, m) * row_bytes(which);
  }
  int64_t kept_bytes(Class which, int64_t m) const {
    return kept(which, m) * row_bytes(which);
  }

  RingSizes rings(Phase phase) const;
  EarlySlots early(Phase phase) const;
  // Return the HBM of the rings and sums of the largest phase, of the kept rows
  // of all layers, and of the resident chunks.
  int64_t ring_bytes() const;
  int64_t kept_bytes() const;
  int64_t resident_bytes() const;
  // Returns the host memory of a whole training step: hidden states, every
  // layer's saved rows, and one layer's scratch. It equals to the byte what the
  // run allocates (client/torch/stream/chunk_store.h).
  int64_t host_bytes() const;

  ChunkLayout layout;
  int64_t rank, ranks, layers;
  int64_t hidden, ffn, vocab, dim;
  int64_t q_heads, kv_heads;     // of this rank, kv after expansion
  int64_t part_begin, part_end;  // the ranks that own this rank's queries
  int64_t element;               // bytes of an element of an activation
  int64_t output_element;        // the same for attention's stored output
  int prefetch_depth;
  BackwardOrder order;
  int64_t rerun_chunks, rerun_layers;
  int64_t ffn_rows;  // rows per FFN call
  LossCut loss;      // the same on all ranks
  bool gated;        // SwiGLU
  bool probe;

 private:
  int64_t groups() const { return (layers - 1) / rerun_layers + 1; }
  int64_t FirstResident(Class which) const;
  // Returns the ranks [first, second) that own this rank's head-layout rows.
  std::pair<int64_t, int64_t> HeadRanks(Class which) const {
    if (Traits(which).rows == Rows::kQueries) return {part_begin, part_end};
    return {0, ranks};
  }
  // Returns, for a class in head layout, how many rows of chunk m the ranks
  // [begin, end) store.
  int64_t StoredOf(Class which, int64_t m, int64_t begin, int64_t end) const;
  void CutRuns();

  std::array<ClassFractions, kClassCount> fractions_;  // by Class
  std::array<int64_t, kClassCount> resident_from_;     // first resident chunk
  std::vector<Run> runs_;
};

// Return the totals of one rank's whole step. KeptBytes includes rows and
// resident chunks.
Bytes HostBytes(const StreamOptions& options);
Bytes RingBytes(const StreamOptions& options);
Bytes KeptBytes(const StreamOptions& options);

// Pinned host memory through which a rank on a GPU copies ids, initial weights
// and files (client/torch/run/host_stage.h). A plan's host bytes and the desk's
// answer include it. A simulated GPU's tensors lie in host memory and need
// none.
inline constexpr Bytes kHostStageBytes = MiB(4);

}  // namespace sluice::stream
