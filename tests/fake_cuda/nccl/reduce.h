// Reductions in rank order: equal input gives equal bits.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/fake_cuda/nccl/api.h"

namespace sluice::fake_nccl {

bool CanReduce(DataType type);
// Combines parts[0][i], parts[1][i], … in this order into result[i]; bfloat16
// is combined as float and rounded once. `result` may be one of the parts.
void Reduce(const std::vector<const std::byte*>& parts, size_t count,
            DataType type, Reduction reduction, std::byte* result);

}  // namespace sluice::fake_nccl
