// The memory of a state file, as README.md draws it: for state_file*.cc only.
//
// Thread safety: pure functions.
#pragma once

#include <fmt/format.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "daemon/state/state_file.h"

namespace sluice::daemon::state_layout {

inline constexpr uint64_t kMagic = 0x31'4554'4154'5343;  // "CSTATE1"
inline constexpr size_t kWord = sizeof(uint64_t);
// Epochs start here, so that no damage of few bits makes one 0.
inline constexpr uint64_t kFirstEpoch = 0x5c0d'a7e1'0000'0000;

struct Header {
  uint64_t magic;  // stored last: says which version this is
  uint64_t checkpoint_bytes;
  uint64_t record_bytes;
};

// Before the bytes of a checkpoint or a record.
struct Lead {
  uint64_t epoch;  // of the checkpoint; stored last. 0: nothing here
  // A record's number in its epoch; for a checkpoint, the versions of all that
  // is written in this epoch.
  uint64_t index;
  uint64_t size;
  uint64_t sum;
};

inline size_t RoundUp(size_t size) {
  return (size + kWord - 1) / kWord * kWord;
}

inline uint32_t SumOf(uint32_t before, const void* bytes, size_t size) {
  return static_cast<uint32_t>(
      crc32_z(before, static_cast<const Bytef*>(bytes), size));
}

// The sum of the lead and of the bytes behind it, which have the sum `bytes`.
inline uint64_t SumOf(Lead lead, uint32_t bytes) {
  lead.sum = 0;
  return crc32_combine(SumOf(0, &lead, sizeof(lead)), bytes,
                       static_cast<z_off_t>(lead.size));
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline absl::Status Damaged(std::string_view what) {
  return absl::FailedPreconditionError(fmt::format(
      "the saved state is damaged ({}): nothing of it is used", what));
}

}  // namespace sluice::daemon::state_layout

namespace sluice::daemon {

struct StateFile::Layout {
  size_t checkpoint;  // room of one, its lead included
  size_t records;     // of all

  size_t slot(uint64_t epoch) const {
    return sizeof(state_layout::Header) + (epoch % 2) * checkpoint;
  }
  size_t log() const { return sizeof(state_layout::Header) + 2 * checkpoint; }
  size_t size() const { return log() + records; }
};

}  // namespace sluice::daemon
