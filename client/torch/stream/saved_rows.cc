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

namespace {

void CopyUnlessSame(const at::Tensor& to, const at::Tensor& from) {
  if (to.data_ptr() != from.data_ptr()) to.copy_(from);
}

}  // namespace

at::Tensor RowWriter::PlaceOf(int64_t first, int64_t count) const {
  const int64_t begin = kept_.size(0), end = first + count;
  if (end <= begin) return kept_.narrow(0, first, count);
  if (first >= begin && end <= begin + stored_.size(0)) {
    return stored_.narrow(0, first - begin, count);
  }
  return {};
}

void RowWriter::Store(int64_t first, const at::Tensor& part) {
  const int64_t begin = kept_.size(0), end = first + part.size(0);
  const int64_t kept = std::clamp(begin, first, end);
  const int64_t present = std::clamp(begin + stored_.size(0), kept, end);
  if (kept > first) {
    CopyUnlessSame(kept_.narrow(0, first, kept - first),
                   part.narrow(0, 0, kept - first));
  }
  if (present > kept) {
    CopyUnlessSame(stored_.narrow(0, kept - begin, present - kept),
                   part.narrow(0, kept - first, present - kept));
  }
}

}  // namespace sluice::runtime
