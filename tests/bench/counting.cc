// Counts the bytes in use of torch's CPU allocator. On a machine without a GPU
// these bytes stand for the device memory that torch.cuda.max_memory_allocated
// counts. length.py compiles this file against the installed torch. libsluice's
// leases and other allocations from the system do not pass through torch's
// allocator.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace {

std::atomic<int64_t> used_bytes{0};
std::atomic<int64_t> peak_bytes{0};
c10::Allocator* torchs_own = nullptr;

void Count(int64_t bytes) {
  const int64_t used = used_bytes.fetch_add(bytes) + bytes;
  int64_t peak = peak_bytes.load();
  while (used > peak && !peak_bytes.compare_exchange_weak(peak, used)) {
  }
}

// An allocation of torch's own allocator, and the requested size.
struct Block {
  c10::DataPtr memory;
  int64_t bytes;
};

void Delete(void* context) {
  auto* block = static_cast<Block*>(context);
  Count(-block->bytes);
  delete block;
}

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = torchs_own->allocate(bytes);
    void* address = memory.get();
    Count(static_cast<int64_t>(bytes));
    return {address, new Block{std::move(memory), static_cast<int64_t>(bytes)},
            &Delete, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    torchs_own->copy_data(to, from, bytes);
  }
};

Counting counting;
constexpr uint8_t kAboveTorchsOwn = 100;

}  // namespace

extern "C" {

// Starts to count; earlier allocations stay uncounted. Idempotent.
void CountFromNow() {
  if (torchs_own == nullptr) {
    torchs_own = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting, kAboveTorchsOwn);
  }
}

int64_t UsedBytes() { return used_bytes.load(); }
int64_t PeakBytes() { return peak_bytes.load(); }

void ResetPeak() { peak_bytes.store(used_bytes.load()); }
}
