#include "tests/fake_cuda/torch/piece_allocator.h"

#include <c10/core/Allocator.h>

#include <algorithm>

namespace sluice::fake_cuda {
namespace {

constexpr size_t kAlignment = 512;  // as in torch's allocator
PieceAllocator* installed = nullptr;

}  // namespace

void PieceAllocator::Install(std::byte* begin, size_t size) {
  installed = new PieceAllocator(begin, size);
  c10::cuda::CUDACachingAllocator::allocator.store(installed);
  c10::SetAllocator(c10::kCUDA, installed);
}

c10::DataPtr PieceAllocator::allocate(size_t size) {
  const c10::Device device(c10::kCUDA, 0);
  void* const pointer = size == 0 ? nullptr : Take(size);
  return {pointer, pointer, &Free, device};
}

void PieceAllocator::Free(void* pointer) {
  if (pointer != nullptr) installed->Give(pointer);
}

void PieceAllocator::None() {
  TORCH_CHECK(false, "the test's allocator does not implement this call");
  std::abort();
}

void* PieceAllocator::Take(size_t size) {
  size = (size + kAlignment - 1) / kAlignment * kAlignment;
  const MutexLock lock(mutex_);
  size_t at = 0;
  for (const auto& [begin, length] : blocks_) {
    if (begin - at >= size) break;
    at = begin + length;
  }
  TORCH_CHECK_WITH(OutOfMemoryError, at + size <= size_,
                   "no room in the piece");
  blocks_[at] = size;
  return begin_ + at;
}

void PieceAllocator::Give(void* pointer) {
  const MutexLock lock(mutex_);
  TORCH_CHECK(blocks_.erase(static_cast<std::byte*>(pointer) - begin_) == 1);
}

}  // namespace sluice::fake_cuda
