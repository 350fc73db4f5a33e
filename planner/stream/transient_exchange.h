// The messages of a head exchange (client/torch/ranks/ulysses.h).
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/layouts.h"
#include "planner/stream/transient_heap.h"

namespace sluice::stream {

enum class Towards { kHeads, kTokens };

// What travels together: tensors with q's heads and with those of k and v.
struct Travellers {
  int queries = 0, keys = 0;
  int64_t dim = 0, element = 0;
};

// `rows[p]` of rank p take part.
void Exchange(TransientHeap& heap, const HeadLayout& heads, int64_t rank,
              const std::vector<int64_t>& rows, const Travellers& what,
              Towards where);

}  // namespace sluice::stream
