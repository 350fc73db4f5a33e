// How token_math.cu's kernels are cut into blocks, for the kernels and
// their launch (internal to kernels/ops).
#pragma once

namespace sluice::ops {

// A norm's row lies in the registers of one block: so many pieces of 16 bytes
// in each of its threads.
inline constexpr int kHeldPieces = 4;
inline constexpr int kMostNormThreads = 512;

}  // namespace sluice::ops
