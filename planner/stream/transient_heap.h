// A heap without memory, which counts live bytes and their peak. Code that
// makes the real code's allocations on it, in the same order, finds the real
// heap's peak.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sluice::stream {

// The region allocator's blocks are whole lines of this size.
inline constexpr int64_t kHeapLine = 64;

class TransientHeap {
 public:
  // A tensor's memory, freed on destruction. A default-constructed Tensor is a
  // view of other memory.
  class Tensor {
   public:
    Tensor() = default;
    Tensor(TransientHeap* heap, int64_t bytes) : heap_(heap), bytes_(bytes) {}
    Tensor(Tensor&& other) noexcept
        : heap_(std::exchange(other.heap_, nullptr)), bytes_(other.bytes_) {}
    Tensor& operator=(Tensor&& other) noexcept {
      Free();
      heap_ = std::exchange(other.heap_, nullptr);
      bytes_ = other.bytes_;
      return *this;
    }
    ~Tensor() { Free(); }
    void Free() {
      if (heap_ != nullptr) heap_->alive_ -= bytes_;
      heap_ = nullptr;
    }

   private:
    TransientHeap* heap_ = nullptr;
    int64_t bytes_ = 0;
  };

  TransientHeap() = default;
  TransientHeap(const TransientHeap&) = delete;

  [[nodiscard]] Tensor Take(int64_t bytes) {
    const int64_t whole = (bytes + kHeapLine - 1) / kHeapLine * kHeapLine;
    alive_ += whole;
    peak_ = std::max(peak_, alive_);
    return Tensor(this, whole);
  }
  // Allocates and frees a temporary at once.
  void Pass(int64_t bytes) { const Tensor block = Take(bytes); }

  int64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = alive_; }

 private:
  int64_t alive_ = 0, peak_ = 0;
};

}  // namespace sluice::stream
