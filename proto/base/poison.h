// Whether this build fills with NaN what is not to be read: freed blocks, and
// buffers whose bytes have not arrived (presets dev, asan and tsan). One source
// knows it, so that all others are compiled once for builds with and without.
#pragma once

namespace sluice {

extern const bool kPoison;

}  // namespace sluice
