// Parses sizes and counts. Every flag of every program and every key of a
// configuration file is parsed here or by ParseBytes (units.h).
//
// KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB powers of 1024, B
// is bytes. Case and blanks do not matter, decimals are allowed. A number
// without a unit ("40", except "0") is refused, and so is a bare letter
// ("40G"), because people read both in two ways.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/units.h"

namespace sluice {

// Formats `size` ("36MiB", "40000001B") so that ParseBytes returns exactly
// `size`. Used for printed commands.
std::string ExactBytes(Bytes size);

// Parses a count of tokens, rows or steps: "131072", "128K", "1.5M". K is 1,024
// and M is 1,048,576, as in names of sequence lengths. The result must be an
// integer; the caller checks its range.
absl::StatusOr<int64_t> ParseCount(std::string_view text);

}  // namespace sluice
