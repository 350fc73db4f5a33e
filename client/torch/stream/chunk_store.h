// The place of everything in a streamed step between its uses: in the leased
// host region, or, if a class is resident, in HBM.
//
// Both places are carved once, in a fixed order, from shapes alone. A buffer is
// rewritten every step (scratch every layer), so each buffer in host memory has
// two tickets: a fetch waits for `written`, and a copy out of HBM for `read`,
// the last fetch. Buffers in HBM need none: only compute uses them, in its
// order. Each copy direction runs in order, so its newest ticket covers the
// others.
//
// Layout: hidden states [layers + 1][chunk] | saved rows [layer][class][chunk]
// | one layer's scratch: dropped q, k, v [chunk], dO [chunk], sums [chunk].
// Chunks that run again have fewer sets of hidden states and saved rows, which
// layers share (StreamShape::hidden_set, saved_set).
//
// Thread safety: one compute thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "client/copy/copy_engine.h"
#include "planner/stream/stream_shape.h"

namespace sluice::runtime {

struct ChunkBuffer {
  std::byte* data = nullptr;
  int64_t size = 0;
  bool resident = false;  // in HBM: used in place, never copied
  client::Ticket written, read;
};

class ChunkStore {
 public:
  // Carves `shape.host_bytes()` from `base`; allocates `resident_bytes()`.
  ChunkStore(const stream::StreamShape& shape, at::Device device,
             std::byte* base);
  ChunkStore(const ChunkStore&) = delete;

  Bytes size() const { return Bytes(host_.used); }  // of the carved arena

  // Unit n is the input of layer n, unit `layers` the output of the last layer.
  ChunkBuffer& hidden(int64_t unit, int64_t m) {
    return hidden_[shape_.hidden_set(unit, m)][m];
  }
  ChunkBuffer& saved(int64_t layer, stream::Class which, int64_t m) {
    return saved_[shape_.saved_set(layer, m)][static_cast<int>(which)][m];
  }
  // Returns the place of dO, of the sums of backward's inner side, or of the
  // rows of q, k or v that are not stored. Forward writes such rows of k and v
  // for later chunks; backward writes them again once they are recomputed.
  ChunkBuffer& scratch(stream::Class which, int64_t m) {
    return scratch_[static_cast<int>(which)][m];
  }

  // Returns the first free unit (hidden states of the sequence), or -1.
  int64_t TakeHidden();
  void GiveHidden(int64_t unit);
  // Ends the use of a layer's saved rows and scratch (with SLUICE_POISON, fills
  // resident ones with NaN). Call it when the layer's backward is over.
  void Dead(int64_t layer);

 private:
  using Chunks = std::vector<ChunkBuffer>;
  struct Arena {
    std::byte* base = nullptr;
    int64_t used = 0;
  };
  Chunks Carve(stream::Class which, auto size_of);

  const stream::StreamShape& shape_;
  at::Tensor resident_memory_;
  Arena host_, resident_;
  std::vector<Chunks> hidden_;
  std::vector<std::vector<Chunks>> saved_;
  std::array<Chunks, stream::kClassCount> scratch_;  // by Class
  std::set<int64_t> free_hidden_;
};

// Owns a sequence of hidden states. The context must outlive it.
class ChunkHandle {
 public:
  ChunkHandle(ChunkStore* store, int64_t unit) : store_(store), unit_(unit) {}
  ~ChunkHandle() { store_->GiveHidden(unit_); }
  ChunkHandle(const ChunkHandle&) = delete;
  ChunkHandle& operator=(const ChunkHandle&) = delete;

  ChunkBuffer& chunk(int64_t m) { return store_->hidden(unit_, m); }

 private:
  ChunkStore* store_;
  int64_t unit_;
};

// The rows of all layers that stay in HBM. A layer's forward writes them; after
// its backward they are dead. They need no tickets: only compute uses them, in
// its own order.
class KeptStore {
 public:
  KeptStore(const stream::StreamShape& shape, at::Device device);
  // Returns the kept rows of a chunk: [kept rows, width].
  at::Tensor rows(int64_t layer, stream::Class which, int64_t m, int64_t width,
                  at::ScalarType type) const;
  void Dead(int64_t layer);

 private:
  const stream::StreamShape& shape_;
  const at::Device device_;
  int64_t layer_bytes_ = 0;
  std::vector<int64_t> offsets_;  // within a layer; by class and chunk
  at::Tensor memory_;
};

}  // namespace sluice::runtime
