// The arithmetic of one rank's streamed step: for every class the rows kept in
// HBM, stored in host memory and dropped (recomputed), and the bytes of every
// buffer in host memory and in HBM. Nothing is allocated here, so that "how
// much would it need" and "allocate it" cannot disagree.
//
// A chunk of a class is resident if all of it stays in HBM and is used there,
// in place: it has no host memory and is never copied.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/stream/classes.h"
#include "planner/stream/loss_rows.h"
#include "planner/stream/options.h"
#include "proto/base/units.h"

namespace sluice::stream {

// Consecutive rows of a chunk in head layout that are all stored or all
// dropped.
struct RowPiece {
  bool stored;
  int64_t row, rows;  // in the chunk
  // Index of the first row among the chunk's stored (or dropped) rows.
  int64_t place;
};

// Alignment of every slot buffer.
inline constexpr int64_t kSlotAlignment = 64;
constexpr int64_t AlignSlot(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// The phases of a step, which need different rings. The rings share one piece
// of HBM, laid out again for each phase.
enum class Phase {
  kForward,    // embedding, layers forward
  kTokens,     // loss, and the token-local part of a layer's backward
  kAttention,  // blocks backward, projections backward, embedding backward
};
inline constexpr Phase kPhases[] = {Phase::kForward, Phase::kTokens,
                                    Phase::kAttention};

// Bytes of a slot, each large enough for the largest record of the phase
// (staging, inputs and outer have two slots, blocks and gradients
// prefetch_depth), and bytes of a chunk's fp32 sums: o if it is stored
// narrower, then dq, dk and dv. In backward's blocks, `outer` holds the outer
// side, `blocks` the inner side, and `gradients` the inner side's sums.
struct RingSizes {
  int64_t staging = 0, inputs = 0, blocks = 0, gradients = 0, outer = 0;
  // One query_sum, and one key_sum each for k and v.
  int64_t query_sum = 0, key_sum = 0;
  // Staging, inputs and sums come first in memory, the other rings after them,
  // blocks at the end.
  int64_t Front() const { return 2 * (staging + inputs + key_sum) + query_sum; }
  int64_t Total(int prefetch_depth) const {
    return Front() + 2 * outer + prefetch_depth * (blocks + gradients);
  }
};

// The number of first slots of a backward phase that lie behind the previous
// phase's Front, and so are filled while that phase computes its last chunk
// (StreamState::Prepare in client/torch/stream).
struct EarlySlots {
  int64_t inputs = 0, blocks = 0, outer = 0;
};

class StreamShape {
 public:
  explicit StreamShape(const StreamOptions& options);

  int64_t chunks() const { return layout.chunks(); }
  bool has_tail() const { return !full(chunks() - 1); }
  bool full(int64_t m) const { return layout.rows(m) == layout.rows(0); }
  // Rows of chunk m over all ranks, and on this rank.
  int64_t rows(int64_t m) const { return layout.rows(m); }
  int64_t local(int64_t m) const { return layout.local_rows(m, rank); }
  // The queries of chunk m for which this rank computes attention with its
  // heads: the rows of its part's ranks, or all of them with one part
  // (HeadLayout).
  int64_t first_query(int64_t m) const {
    return layout.local_offset(m, part_begin);
  }
  int64_t queries(int64_t m) const {
    return layout.local_offset(m, part_end) - first_query(m);
  }
  // Whether a class, or its chunk m, is used in place in HBM: a class that is
  // kept whole, or its last chunks, but never a chunk that runs again.
  bool resident(Class which) const { return resident_from(which) == 0; }
  bool resident(Class which, int64_t m) const {
    return m >= resident_from(which);
  }
  int64_t resident_from(Class which) const {
    return resident_from_[static_cast<size_t>(which)];
  }
  // Whether chunk m, or a layer, runs again in backward
  // (StreamOptions::rerun_chunks). The last group of layers does not, because
  // forward has just left what backward needs.
  bool reruns(int64_t m) const { return m < rerun_chunks; }
  bool reruns_layer(int64_t layer) const {
    return rerun_chunks > 0 &&
           layer / rerun_layers < (layers - 1) / rerun_layers;
  }
  // Whether `layer` is the last of a group that runs again. Its backward
  // follows.
  bool rerun_end(int64_t layer) const {
    return reruns_layer(layer) && (layer + 1) % rerun_layers == 0;
  }
  int64_t layers_rerun() const {
    return rerun_chunks > 0 ? (layers - 1) / rerun_layers * rerun_layers : 0;
  }
  // Number of sets of hidden states that chunk m has: each layer's input and
  // the last output; or, if it runs again, the groups' inputs, the inputs
  // inside one group, and the last output. hidden_set returns the set of a
  // layer's input (layer == layers: of the last output).
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
  // The same for saved tensors: one set per layer, or per layer of a group.
  int64_t saved_sets(int64_t m) const {
    return reruns(m) ? std::min(rerun_layers, layers) : layers;
  }
  int64_t saved_set(int64_t layer, int64_t m) const {
    return reruns(m) ? layer % rerun_layers : layer;
  }
  // The first `kept` rows that a rank has of chunk m stay in HBM; rows up to
  // `present` are stored in host memory; the rest is dropped. A resident class
  // keeps none by rows, and all its rows are present.
  int64_t kept(Class which, int64_t m) const { return kept_of(which, m, rank); }
  int64_t kept_of(Class which, int64_t m, int64_t p) const;
  int64_t present(Class which, int64_t m) const {
    return present_of(which, m, rank);
  }
  int64_t present_of(Class which, int64_t m, int64_t p) const;
  // For q, k, v in head layout: stored rows of all ranks that share rows with
  // this rank, and the dropped ones; and whether any rank dropped rows, the
  // same answer on all ranks.
  int64_t head_stored(Class which, int64_t m) const;
  int64_t head_dropped(Class which, int64_t m) const {
    return class_rows(which, m) - head_stored(which, m);
  }
  bool any_dropped(Class which, int64_t m) const {
    return StoredOf(which, m, 0, ranks) < rows(m);
  }
  // The fractions of a class's rows: as requested, or all in host memory.
  const ClassFractions& fractions(Class which) const {
    return fractions_[static_cast<size_t>(which)];
  }
  // Returns chunk m of q, k or v in head layout as pieces, in row order.
  std::vector<RowPiece> pieces(Class which, int64_t m) const;

  // The groups of the loss that a step runs: all of them, or the first and the
  // last (`probe`). loss_rows returns this rank's rows of one.
  std::vector<LossGroup> loss_groups() const;
  int64_t loss_rows(const LossGroup& group) const;

  // The chunks that a step or a probe runs.
  std::vector<int64_t> active_chunks() const;

  int64_t element_of(Precision precision) const {
    switch (precision) {
      case Precision::kActivation:
        return element;
      case Precision::kOutput:
        return output_element;
      case Precision::kFp32:
        break;
    }
    return 4;
  }
  // Sums over chunks and pairs of chunks are computed over runs of equal ones,
  // so the cost does not depend on the sequence length.
  struct Run {
    int64_t first, end;
  };
  const std::vector<Run>& runs() const { return runs_; }
  int64_t SumOverChunks(auto bytes_of) const {
    int64_t sum = 0;
    for (const Run& run : runs_)
      sum += (run.end - run.first) * bytes_of(run.first);
    return sum;
  }
  // Bytes of one row of a class. 0: this model or order has no such class.
  int64_t row_bytes(Class which) const;
  // This rank's rows of a class in chunk m, and their bytes; the bytes of all
  // chunks.
  int64_t class_rows(Class which, int64_t m) const {
    switch (Traits(which).rows) {
      case Rows::kTokens:
        return local(m);
      case Rows::kQueries:
        return queries(m);
      case Rows::kKeys:
        break;
    }
    return rows(m);
  }
  int64_t chunk_bytes(Class which, int64_t m) const {
    return class_rows(which, m) * row_bytes(which);
  }
  int64_t class_bytes(Class which) const {
    return SumOverChunks([&](int64_t m) { return chunk_bytes(which, m); });
  }
  // Bytes copied whenever the class is fetched or sent whole.
  int64_t moved_bytes(Class which, int64_t m) const {
    return resident(which, m) ? 0 : chunk_bytes(which, m);
  }
  int64_t moved_bytes(Class which) const {
    return SumOverChunks([&](int64_t m) { return moved_bytes(which, m); });
  }
  // Rows stored in host memory, dropped, and kept in HBM by rows.
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
  // HBM of the rings and sums of the largest phase, of the kept rows of all
  // layers, and of the resident classes.
  int64_t ring_bytes() const;
  int64_t kept_bytes() const;
  int64_t resident_bytes() const;
  // Host memory of a whole training step: hidden states of every layer's input
  // and the last output, every layer's saved rows, one layer's scratch. Matches
  // to the byte what the run carves (client/torch/stream/chunk_store.h).
  int64_t host_bytes() const;

  ChunkLayout layout;
  int64_t rank, ranks, layers;
  int64_t hidden, ffn, vocab, dim;
  int64_t q_heads, kv_heads;     // on this rank, kv after expansion
  int64_t part_begin, part_end;  // ranks that own this rank's queries
  int64_t element;               // bytes of an activation
  int64_t output_element;        // of attention's output as it is stored
  int prefetch_depth;
  BackwardOrder order;
  int64_t rerun_chunks, rerun_layers;
  int64_t ffn_rows;  // rows per FFN call
  LossCut loss;      // the same on all ranks
  bool gated;        // SwiGLU
  bool probe;

 private:
  // Number of groups of layers that run again together.
  int64_t groups() const { return (layers - 1) / rerun_layers + 1; }
  int64_t FirstResident(Class which) const;
  // The ranks that own this rank's rows of a class in head layout.
  std::pair<int64_t, int64_t> HeadRanks(Class which) const {
    if (Traits(which).rows == Rows::kQueries) return {part_begin, part_end};
    return {0, ranks};
  }
  // Rows of chunk m of a class in head layout that ranks [begin, end) store.
  int64_t StoredOf(Class which, int64_t m, int64_t begin, int64_t end) const;
  void CutRuns();

  std::array<ClassFractions, kClassCount> fractions_;  // by Class
  std::array<int64_t, kClassCount> resident_from_;     // first chunk
  std::vector<Run> runs_;
};

// Totals over a whole step of one rank (StreamShape). Kept: by rows and whole.
Bytes HostBytes(const StreamOptions& options);
Bytes RingBytes(const StreamOptions& options);
Bytes KeptBytes(const StreamOptions& options);

}  // namespace sluice::stream
