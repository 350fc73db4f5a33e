// Counts what torch's CPU allocator hands out: on a machine without a GPU it
// stands for the device memory that torch.cuda.max_memory_allocated counts.
// Compiled by length.py against the torch it measures; libsluice's leases and
// whatever else asks the system for memory do not come through here.

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

// Torch's own allocation, and the bytes that were asked for.
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

// From now on; what was handed out before is not known. Twice is fine.
void CountFromNow() {
  if (torchs_own == nullptr) {
    torchs_own = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting, kAboveTorchsOwn);
  }
}

int64_t UsedBytes() { return used_bytes.load(); }
int64_t PeakBytes() { return peak_bytes.load(); }

// The peak is what is used now.
void ResetPeak() { peak_bytes.store(used_bytes.load()); }
}
