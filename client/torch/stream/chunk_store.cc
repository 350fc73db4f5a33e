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

// Hidden states in HBM lie back to back, since the loss takes several chunks
// as one.
ChunkStore::Chunks ChunkStore::Carve(stream::Class which, auto size_of) {
  Chunks chunks(shape_.chunks());
  const bool resident = shape_.resident(which);
  Arena& arena = resident ? resident_ : host_;
  const bool dense = resident && which == stream::Class::kInput;
  for (int64_t m = 0; m < shape_.chunks(); ++m) {
    const int64_t size = size_of(m);
    chunks[m] = {.data = arena.base + arena.used,
                 .size = size,
                 .resident = resident,
                 .written = {},
                 .read = {}};
    arena.used += dense ? size : stream::AlignSlot(size);
  }
  arena.used = stream::AlignSlot(arena.used);
  PoisonResident(chunks, resident_memory_);
  return chunks;
}

ChunkStore::Chunks ChunkStore::CarveWhole(stream::Class which) {
  return Carve(which, [&](int64_t m) { return shape_.chunk_bytes(which, m); });
}

ChunkStore::ChunkStore(const stream::StreamShape& shape, at::Device device,
                       std::byte* base)
    : shape_(shape),
      resident_memory_(
          at::empty({shape.resident_bytes()}, On(device, at::kByte))),
      host_{base},
      resident_{static_cast<std::byte*>(resident_memory_.data_ptr())} {
  for (int64_t unit = 0; unit <= shape.layers; ++unit) {
    hidden_.push_back(CarveWhole(stream::Class::kInput));
    free_hidden_.push_back(shape.layers - unit);  // unit 0 is taken first
  }
  saved_.resize(shape.layers);
  for (std::vector<Chunks>& layer : saved_) {
    for (const stream::Class which : stream::kLayerClasses) {
      layer.push_back(shape.resident(which)
                          ? CarveWhole(which)
                          : Carve(which, [&](int64_t m) {
                              return shape.stored_bytes(which, m);
                            }));
    }
  }
  for (const stream::Class which : stream::kHeadClasses) {
    dropped_[static_cast<int>(which) - static_cast<int>(stream::Class::kQ)] =
        Carve(which, [&](int64_t m) { return shape.dropped_bytes(which, m); });
  }
  for (const stream::ClassTraits& c : stream::kClasses) {
    if (c.life != stream::Life::kScratch) continue;
    scratch_[static_cast<int>(c.which)] = CarveWhole(c.which);
  }
}

void ChunkStore::GiveHidden(int64_t unit) {
  PoisonResident(hidden_[unit], resident_memory_);
  free_hidden_.push_back(unit);
}

void ChunkStore::Dead(int64_t layer) {
  for (const Chunks& chunks : saved_[layer]) {
    PoisonResident(chunks, resident_memory_);
  }
  for (const Chunks& chunks : scratch_) {
    PoisonResident(chunks, resident_memory_);
  }
}

ChunkBuffer& ChunkStore::dropped(stream::Class which, int64_t m) {
  return dropped_[static_cast<int>(which) - static_cast<int>(stream::Class::kQ)]
                 [m];
}

int64_t ChunkStore::TakeHidden() {
  if (free_hidden_.empty()) return -1;
  const int64_t unit = free_hidden_.back();
  free_hidden_.pop_back();
  return unit;
}

}  // namespace sluice::runtime
