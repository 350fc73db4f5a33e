// The format of a row in a record: an operation, the key, and the row's bytes.
#pragma once

#include <cstdint>

namespace sluice::daemon {

enum class RowOp : uint8_t { kPut = 1, kErase = 2, kEraseBelow = 3 };

// The first letter of a key is a RowKind (daemon/core/state.h) or one of these.
// kLooseRow: the state outside of tables. kObjectRow: a profile or a plan, by
// its number.
inline constexpr char kLooseRow = 'c', kObjectRow = 'o';

}  // namespace sluice::daemon
