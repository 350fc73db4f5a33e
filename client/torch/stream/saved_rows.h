// A class's rows of a chunk, from forward to backward: the first rows stay in
// HBM (KeptStore), the next ones go to host memory and come back, and the rest
// is computed again. Readers get whole blocks of rows wherever each row comes
// from, so the sums of weight gradients run over the same blocks for all
// fractions.
//
// Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "client/torch/stream/chunk_io.h"
#include "planner/stream/stream_shape.h"

namespace sluice::runtime {

// The rows of all layers that stay in HBM; carved once. A layer's forward
// writes its rows; after the layer's backward they are dead (then filled with
// NaN, with SLUICE_POISON). These rows need no tickets: only compute uses them,
// in its own order.
class KeptStore {
 public:
  // Allocates StreamShape::kept_bytes.
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

// Writes a class's rows in forward.
class RowWriter {
 public:
  // `kept` are the rows in HBM; `stored` is the piece of the staging slot for
  // the rows that are copied to `to`.
  RowWriter(at::Tensor kept, at::Tensor stored, ChunkBuffer& to)
      : kept_(std::move(kept)), stored_(std::move(stored)), to_(to) {}

  // Returns the memory of rows [first, first + count) of the class, so that
  // they can be computed in place before Store gets them. Undefined if the rows
  // are dropped or not in one piece.
  at::Tensor PlaceOf(int64_t first, int64_t count) const;
  // Stores `part`, which is rows [first, first + n) of the class.
  void Store(int64_t first, const at::Tensor& part);
  void Send(StagingRing& staging) const { staging.Send(stored_, to_); }

 private:
  at::Tensor kept_, stored_;
  ChunkBuffer& to_;
};

// Reads a class's rows in backward.
class RowReader {
 public:
  RowReader() = default;
  // `kept` are the rows in HBM; `stored` has the fetched rows.
  RowReader(at::Tensor kept, at::Tensor stored)
      : kept_(std::move(kept)), stored_(std::move(stored)) {}

  // Returns rows [first, first + count). Calls again(row, rows) to compute
  // dropped ones.
  at::Tensor Rows(int64_t first, int64_t count, auto again) const {
    const int64_t end = first + count, begin = kept_.size(0);
    const int64_t kept = std::clamp(begin, first, end);
    const int64_t present = std::clamp(begin + stored_.size(0), kept, end);
    if (kept == end) return kept_.narrow(0, std::min(first, begin), count);
    if (present == first) return again(first, count);
    if (kept == first && present == end) {
      return stored_.narrow(0, first - begin, count);
    }
    const at::Tensor rows =
        at::empty({count, stored_.size(1)}, stored_.options());
    Put(kept_, first, kept - first, rows, 0);
    Put(stored_, kept - begin, present - kept, rows, kept - first);
    if (end > present) {
      rows.narrow(0, present - first, end - present)
          .copy_(again(present, end - present));
    }
    return rows;
  }

 private:
  static void Put(const at::Tensor& from, int64_t row, int64_t count,
                  const at::Tensor& to, int64_t at) {
    if (count > 0) to.narrow(0, at, count).copy_(from.narrow(0, row, count));
  }

  at::Tensor kept_, stored_;
};

}  // namespace sluice::runtime
