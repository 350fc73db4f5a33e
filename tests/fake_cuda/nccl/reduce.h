// Reductions in rank order: equal input gives equal bits.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/fake_cuda/nccl/api.h"

namespace sluice::fake_nccl {

bool CanReduce(DataType type);
// Computes result[i] = parts[0][i] + parts[1][i] + ...; 16-bit floats are
// summed in float and rounded once. `result` may be one of the parts.
void Reduce(const std::vector<const std::byte*>& parts, size_t count,
            DataType type, Reduction reduction, std::byte* result);

}  // namespace sluice::fake_nccl
