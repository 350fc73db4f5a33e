#include "client/torch/stream/chunk_store.h"

namespace sluice::runtime {

template <typename SizeOf>
ChunkStore::Chunks ChunkStore::Carve(SizeOf size_of) {
  Chunks chunks(shape_.chunks());
  for (int64_t m = 0; m < shape_.chunks(); ++m) {
    chunks[m].size = size_of(m);
    chunks[m].data = base_ + used_;
    used_ += stream::AlignSlot(chunks[m].size);
  }
  return chunks;
}

ChunkStore::ChunkStore(const stream::StreamShape& shape, std::byte* base)
    : shape_(shape), base_(base) {
  for (int64_t unit = 0; unit <= shape.layers; ++unit) {
    hidden_.push_back(Carve([&](int64_t m) {
      return shape.chunk_bytes(stream::Class::kInput, m);
    }));
    free_hidden_.push_back(shape.layers - unit);  // unit 0 is taken first
  }
  saved_.resize(shape.layers);
  for (std::vector<Chunks>& layer : saved_) {
    for (const stream::Class which : stream::kLayerClasses) {
      layer.push_back(
          Carve([&](int64_t m) { return shape.stored_bytes(which, m); }));
    }
  }
  for (const stream::Class which : stream::kHeadClasses) {
    dropped_[static_cast<int>(which) - static_cast<int>(stream::Class::kQ)] =
        Carve([&](int64_t m) { return shape.dropped_bytes(which, m); });
  }
  output_gradient_ = Carve([&](int64_t m) {
    return shape.chunk_bytes(stream::Class::kOutputGradient, m);
  });
  query_gradient_ = Carve([&](int64_t m) {
    return shape.chunk_bytes(stream::Class::kQueryGradient, m);
  });
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
