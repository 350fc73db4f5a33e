// What a range of addresses is to a context: a GPU's memory, pinned host
// memory, pageable memory, or nothing that a copy may touch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/fake_cuda/world.h"

namespace sluice::fake_cuda {

struct Range {
  enum class Kind { kGpu, kPinned, kPageable };

  DevicePointer address = 0;
  size_t size = 0;
  Kind kind = Kind::kPageable;
  std::byte* view = nullptr;  // where this process reads and writes it
  struct Part {
    Extent extent;
    Uses* uses = nullptr;  // of the mapping or registration; null: pageable
  };
  std::vector<Part> parts;
  std::optional<Rule> broken;  // then the rest is nothing

  bool IsPageable() const { return kind == Kind::kPageable; }
};

// The world's lock is held, by this and while the answer is used.
Range Resolve(World& world, DevicePointer address, size_t size,
              const ContextState& by);
// The operation that `by` enqueued last accesses the range: races are found.
void NoteAccess(World& world, const Timeline& by, const Range& range,
                bool writes, const std::string& what);

}  // namespace sluice::fake_cuda
