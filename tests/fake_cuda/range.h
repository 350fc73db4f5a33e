// The kind of a range of addresses for a context: a GPU's memory, pinned host
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
  std::byte* view = nullptr;  // this process's address for reading and writing
  struct Part {
    Extent extent;
    Uses* uses = nullptr;  // of the mapping or registration, or null
  };
  std::vector<Part> parts;
  std::optional<Rule> broken;  // if set, the other fields have no meaning

  bool IsPageable() const { return kind == Kind::kPageable; }
};

// Finds the kind of a range for context `by`. The caller must hold the world's
// lock during the call and while it uses the result.
Range Resolve(World& world, DevicePointer address, size_t size,
              const ContextState& by);
// Records that the latest operation of `by` accesses the range. Finds races.
void NoteAccess(World& world, const Timeline& by, const Range& range,
                bool writes, const std::string& what);

}  // namespace sluice::fake_cuda
