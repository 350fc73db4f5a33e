#include "client/torch/stream/chunk_store.h"

#include <ATen/ops/empty.h>

#include "client/torch/placement.h"

namespace sluice::runtime {
namespace {

void PoisonResident(const std::vector<ChunkBuffer>& chunks,
                    const at::Tensor& memory) {
  for (const ChunkBuffer& chunk : chunks) {
    if (chunk.resident) Poison(chunk.data, chunk.size, memory.device());
  }
}

}  // namespace

// Carves the chunks of a class. Hidden states in HBM are contiguous, since the
// loss takes several chunks as one. Chunks of size 0 have no place.
ChunkStore::Chunks ChunkStore::Carve(stream::Class which, auto size_of) {
  Chunks chunks(shape_.chunks());
  for (int64_t m = 0; m < shape_.chunks(); ++m) {
    const int64_t size = size_of(m);
    const bool resident = shape_.resident(which, m);
    Arena& arena = resident ? resident_ : host_;
    chunks[m] = {
        .data = arena.base + arena.used, .size = size, .resident = resident};
    const bool dense = resident && which == stream::Class::kInput;
    arena.used += dense ? size : stream::AlignSlot(size);
  }
  resident_.used = stream::AlignSlot(resident_.used);
  PoisonResident(chunks, resident_memory_);
  return chunks;
}

ChunkStore::ChunkStore(const stream::StreamShape& shape, at::Device device,
                       std::byte* base)
    : shape_(shape),
      resident_memory_(
          at::empty({shape.resident_bytes()}, On(device, at::kByte))),
      host_{base},
      resident_{static_cast<std::byte*>(resident_memory_.data_ptr())} {
  for (int64_t unit = 0; unit <= shape.layers; ++unit) {
    hidden_.push_back(Carve(stream::Class::kInput, [&](int64_t m) {
      return unit < shape.hidden_sets(m)
                 ? shape.chunk_bytes(stream::Class::kInput, m)
                 : 0;
    }));
    free_hidden_.insert(unit);
  }
  saved_.resize(shape.layers);
  for (int64_t set = 0; set < shape.layers; ++set) {
    for (const stream::Class which : stream::kLayerClasses) {
      saved_[set].push_back(Carve(which, [&](int64_t m) -> int64_t {
        if (set >= shape.saved_sets(m)) return 0;
        return shape.resident(which, m) ? shape.chunk_bytes(which, m)
                                        : shape.stored_bytes(which, m);
      }));
    }
  }
  for (const stream::Class which : stream::kHeadClasses) {
    scratch_[static_cast<int>(which)] =
        Carve(which, [&](int64_t m) { return shape.dropped_bytes(which, m); });
  }
  for (const stream::ClassTraits& c : stream::kClasses) {
    if (c.life != stream::Life::kScratch) continue;
    scratch_[static_cast<int>(c.which)] = Carve(
        c.which, [&](int64_t m) { return shape.chunk_bytes(c.which, m); });
  }
}

void ChunkStore::GiveHidden(int64_t unit) {
  PoisonResident(hidden_[unit], resident_memory_);
  free_hidden_.insert(unit);
}

void ChunkStore::Dead(int64_t layer) {
  for (const Chunks& chunks : saved_[layer]) {
    PoisonResident(chunks, resident_memory_);
  }
  for (const Chunks& chunks : scratch_) {
    PoisonResident(chunks, resident_memory_);
  }
}

int64_t ChunkStore::TakeHidden() {
  if (free_hidden_.empty()) return -1;
  return free_hidden_.extract(free_hidden_.begin()).value();
}

KeptStore::KeptStore(const stream::StreamShape& shape, at::Device device)
    : shape_(shape), device_(device) {
  for (const stream::Class which : stream::kLayerClasses) {
    for (int64_t m = 0; m < shape.chunks(); ++m) {
      offsets_.push_back(layer_bytes_);
      layer_bytes_ += stream::AlignSlot(shape.kept_bytes(which, m));
    }
  }
  if (layer_bytes_ == 0) return;
  memory_ = at::empty({shape.layers * layer_bytes_}, On(device, at::kByte));
  for (int64_t layer = 0; layer < shape.layers; ++layer) Dead(layer);
}

at::Tensor KeptStore::rows(int64_t layer, stream::Class which, int64_t m,
                           int64_t width, at::ScalarType type) const {
  const int64_t rows = shape_.kept(which, m);
  if (rows == 0) return ViewOf(nullptr, {0, width}, type, device_);
  const auto at =
      static_cast<size_t>(static_cast<int64_t>(which) * shape_.chunks() + m);
  std::byte* const base = static_cast<std::byte*>(memory_.data_ptr());
  return ViewOf(base + layer * layer_bytes_ + offsets_[at], {rows, width}, type,
                device_);
}

void KeptStore::Dead(int64_t layer) {
  if (!memory_.defined()) return;
  std::byte* const base = static_cast<std::byte*>(memory_.data_ptr());
  Poison(base + layer * layer_bytes_, layer_bytes_, device_);
}

}  // namespace sluice::runtime
