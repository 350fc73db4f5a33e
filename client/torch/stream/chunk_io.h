// The rings in HBM through which chunks leave for host memory and come back.
//
// Staging ring (MEMO's rounding buffers, one chunk each): compute fills a slot
// with pieces, and Flush sends those queued so far; compute may still read a
// piece while it is copied. The slot is free once its last copy out has ended.
// Fetch ring: a copy in is issued after the slot's last use and after the host
// bytes were written. Compute waits for it (Next) and sets the last use (Done).
//
// Copies are issued in program order, and a fetch is issued only once
// everything that it reads has been sent, so waits cannot form a circle. With
// SLUICE_POISON a slot is filled with NaN before it is reused.
//
// Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/stream/chunk_store.h"
#include "client/torch/stream/pending_weights.h"
#include "planner/stream/stream_shape.h"

namespace sluice::runtime {

// A slot's memory, handed out in typed pieces from the front. Fields that a
// fetch found resident are handed out where they are, and take no room.
class Slot {
 public:
  Slot(at::Device device, std::byte* data, int64_t size,
       const client::Ticket& free)
      : device_(device), data_(data), size_(size), last_use_(free) {}

  at::Tensor Take(at::IntArrayRef sizes, at::ScalarType type);
  void Rewind() { used_ = taken_ = 0; }

 private:
  friend class Ring;
  friend class StagingRing;
  friend class FetchRing;
  friend class Fetches;
  at::Device device_;
  std::byte* data_;
  int64_t size_;
  int64_t used_ = 0;
  size_t taken_ = 0;
  std::vector<std::byte*> resident_;  // by field; null: in the slot
  client::Ticket ready_;     // fetch ring: the slot's bytes have arrived
  client::Ticket last_use_;  // once reached, the slot may be written again
  bool blocked_ = false;     // fetch ring: until FetchRing::Unblock
};

// The ring has slots * slot_bytes bytes, 64-byte aligned, slot 0 at the end.
struct RingMemory {
  at::Device device;
  std::byte* data = nullptr;
  int64_t slot_bytes = 0;
  int slots = 0;
  PendingWeights* pending = nullptr;     // advanced before each fetch is taken
  const std::byte* in_use_to = nullptr;  // blocks slots that begin below it
};

class Ring {
 public:
  // `memory` outlives the ring and may be written once `free` is reached.
  Ring(client::CopyEngine* copies, const RingMemory& memory,
       const client::Ticket& free);
  // Makes compute wait for the last uses of the ring's memory.
  absl::Status AwaitUses() const;

 protected:
  client::CopyEngine* copies_;
  std::vector<Slot> slots_;
};

class StagingRing : public Ring {
 public:
  using Ring::Ring;

  // Moves on to the next slot, once its copies out have ended.
  absl::Status Begin();
  at::Tensor Take(at::IntArrayRef sizes, at::ScalarType type) {
    return slots_[current_].Take(sizes, type);
  }
  // Returns a piece as large as `to`; the memory of `to` if `to` is resident.
  at::Tensor TakeFor(const ChunkBuffer& to, at::IntArrayRef sizes,
                     at::ScalarType type);
  // Queues contiguous `from` (in the current slot) for `to`, at `offset`. Does
  // nothing if `to` is resident.
  void Send(const at::Tensor& from, ChunkBuffer& to, int64_t offset = 0);
  // Sends what is queued, after the compute enqueued so far, and returns the
  // mark of that compute.
  client::Ticket Flush(const char* label);
  // Sends `from`, memory outside the ring that is computed once `computed` is
  // reached, and returns the ticket of that copy.
  static client::Ticket SendNow(client::CopyEngine& copies,
                                const at::Tensor& from, ChunkBuffer& to,
                                const client::Ticket& computed,
                                const char* label);

 private:
  size_t current_ = 0;
  std::vector<client::CopyPiece> pieces_;
  std::vector<ChunkBuffer*> buffers_;
};

// The content of one fetch: fields, each made of pieces. The reader takes the
// same fields from the slot in the same order.
class Fetch {
 public:
  // Begins a field of `size` bytes in the slot.
  void Field(int64_t size);
  // Adds a field with room for one whole buffer, without copying it.
  void Space(ChunkBuffer& buffer);
  // Copies bytes [offset, offset + size) of `from` to byte `at` of the field.
  void Piece(ChunkBuffer& from, int64_t offset, int64_t at, int64_t size);
  // Adds a field that is one whole buffer.
  void Whole(ChunkBuffer& from);

 private:
  friend class Fetches;
  struct Part {
    int64_t to;
    std::byte* from;
    int64_t size;
  };
  int64_t field_ = 0, used_ = 0;
  std::vector<std::byte*> resident_;  // by field; null: in the slot
  std::vector<Part> parts_;
  std::vector<ChunkBuffer*> buffers_;
};

class FetchRing : public Ring {
 public:
  FetchRing(client::CopyEngine* copies, const RingMemory& memory,
            const client::Ticket& free);
  // Unblocks the blocked slots: they may be written once `free` is reached.
  void Unblock(const client::Ticket& free);

 private:
  friend class Fetches;
  PendingWeights* pending_;
  size_t next_ = 0;  // the slot of the next fetch
};

// A program of fetches through a ring: issued in order, as far ahead as the
// ring and the data allow. A ring runs one program at a time.
class Fetches {
 public:
  // Fills in the k-th fetch. Returns false if something that it reads has not
  // been sent yet; it is called again later, with an empty Fetch.
  using Program = std::function<bool(int64_t k, Fetch& fetch)>;
  Fetches(FetchRing* ring, int64_t count, const char* label, Program program);
  ~Fetches();  // issued fetches still arrive
  Fetches(const Fetches&) = delete;

  // Issues what can be issued. Never waits.
  void Pump();
  // Returns the next slot; compute waits for its bytes.
  absl::StatusOr<Slot*> Next();
  // Lets the slot of the last Next() be written again: after all compute so
  // far, or at `last_use`.
  void Done();
  void Done(const client::Ticket& last_use);

 private:
  bool IssueOne();

  FetchRing* ring_;
  const int64_t count_;
  const char* label_;
  Program program_;
  int64_t issued_ = 0, taken_ = 0, done_ = 0;
  size_t first_;  // slot of fetch 0
};

// Writes a class's rows in forward.
class RowWriter {
 public:
  // `stored` is the piece of the staging slot for the rows copied to `to`.
  RowWriter(at::Tensor kept, at::Tensor stored, ChunkBuffer& to)
      : kept_(std::move(kept)), stored_(std::move(stored)), to_(to) {}

  // Returns the memory of rows [first, first + count), to compute them in place
  // before Store. Undefined if they are dropped or not in one piece.
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

  // Returns rows of the class; calls again(row, rows) to compute dropped ones.
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
