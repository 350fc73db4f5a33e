// Parses sizes and counts. All programs parse their flags and configuration
// keys with these functions and ParseBytes (units.h).
//
// KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB powers of 1024, B
// is bytes. Case and blanks do not matter, decimals are allowed. A number
// without a unit ("40", except "0") or with a bare letter ("40G") is refused,
// because it has two possible meanings.
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
// `size`. For commands that are printed for people to run.
std::string ExactBytes(Bytes size);

// Parses a count of tokens, rows or steps: "131072", "128K", "1.5M". K is 1,024
// and M is 1,048,576, as in names of sequence lengths. The result must be an
// integer; the caller checks its range.
absl::StatusOr<int64_t> ParseCount(std::string_view text);

}  // namespace sluice
