#include "client/torch/stream/saved_rows.h"

#include "client/torch/placement.h"

namespace sluice::runtime {

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

void RowWriter::Store(int64_t first, const at::Tensor& part) {
  const int64_t begin = kept_.size(0), end = first + part.size(0);
  const int64_t kept = std::clamp(begin, first, end);
  const int64_t present = std::clamp(begin + stored_.size(0), kept, end);
  if (kept > first) {
    kept_.narrow(0, first, kept - first).copy_(part.narrow(0, 0, kept - first));
  }
  if (present > kept) {
    stored_.narrow(0, kept - begin, present - kept)
        .copy_(part.narrow(0, kept - first, present - kept));
  }
}

}  // namespace sluice::runtime
