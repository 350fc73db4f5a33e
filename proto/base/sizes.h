// Sizes and counts as people write them: with ParseBytes (units.h) the one
// reader behind every flag of every program and every key of a file.
//
// Sizes: KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024, B
// is bytes; case and blanks do not count, decimals are allowed. A number
// without a unit ("40", but for "0") is refused, and so is a bare letter
// ("40G"), which people read both ways.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/units.h"

namespace sluice {

// "36MiB", "40000001B": ParseBytes reads exactly `size` back. For commands
// that are printed to be run.
std::string ExactBytes(Bytes size);

// Counts (tokens, rows, steps): "131072", "128K", "1.5M" with K = 1,024 and M =
// 1,048,576, as lengths of sequences are named. It must come to a whole number;
// its range is the caller's to check.
absl::StatusOr<int64_t> ParseCount(std::string_view text);

}  // namespace sluice
