#include "client/torch/stream/host_store.h"

namespace sluice::runtime {

template <typename SizeOf>
HostStore::Chunks HostStore::Carve(SizeOf size_of) {
  Chunks chunks(shape_.chunks());
  for (int64_t m = 0; m < shape_.chunks(); ++m) {
    chunks[m].size = size_of(m);
    chunks[m].data = base_ + used_;
    used_ += stream::AlignSlot(chunks[m].size);
  }
  return chunks;
}

HostStore::HostStore(const stream::StreamShape& shape, std::byte* base)
    : shape_(shape), base_(base) {
  for (int64_t unit = 0; unit <= shape.layers; ++unit) {
    hidden_.push_back(Carve([&](int64_t m) { return shape.hidden_bytes(m); }));
    free_hidden_.push_back(shape.layers - unit);  // unit 0 is taken first
  }
  saved_.resize(shape.layers);
  for (std::vector<Chunks>& layer : saved_) {
    for (const stream::Saved which : stream::kAllSaved) {
      layer.push_back(
          Carve([&](int64_t m) { return shape.stored_bytes(which, m); }));
    }
  }
  for (const stream::Saved which : stream::kHeadSaved) {
    dropped_[static_cast<int>(which) - static_cast<int>(stream::Saved::kQ)] =
        Carve([&](int64_t m) { return shape.dropped_bytes(which, m); });
  }
  output_gradient_ =
      Carve([&](int64_t m) { return shape.rows(m) * shape.query_row_bytes(); });
  query_gradient_ =
      Carve([&](int64_t m) { return shape.query_gradient_bytes(m); });
}

HostBuffer& HostStore::dropped(stream::Saved which, int64_t m) {
  return dropped_[static_cast<int>(which) - static_cast<int>(stream::Saved::kQ)]
                 [m];
}

int64_t HostStore::TakeHidden() {
  if (free_hidden_.empty()) return -1;
  const int64_t unit = free_hidden_.back();
  free_hidden_.pop_back();
  return unit;
}

}  // namespace sluice::runtime
