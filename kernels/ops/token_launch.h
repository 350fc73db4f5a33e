// How token_math.cu's kernels are divided into blocks. Shared by the kernels
// and the code that launches them (internal to kernels/ops).
#pragma once

namespace sluice::ops {

// A block of a norm kernel holds one row in registers: each thread holds at
// most kHeldPieces pieces of 16 bytes.
inline constexpr int kHeldPieces = 4;
inline constexpr int kMostNormThreads = 512;

}  // namespace sluice::ops
