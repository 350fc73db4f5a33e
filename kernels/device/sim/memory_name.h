// What the kernel tells of a piece of simulated memory: its memfd's name, which
// shows in /proc/PID/fd and /proc/PID/maps of every process that has it.
//
//   sluice-sim:NODE:MAKER:gpu0:4194304
//
// A name is given when the memfd is made and cannot change. But any user may
// make a memfd of any name, so a name counts only if the file's owner, which
// the kernel tells too, is trusted (outside.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"

namespace sluice::device {

struct MemoryName {
  std::string node;
  uint64_t maker = 0;  // a driver; random
  Placement where;
  Bytes size;
  bool operator==(const MemoryName&) const = default;
};

// As memfd_create wants it.
std::string ToText(const MemoryName& name);
// Nullopt: not one of these.
std::optional<MemoryName> ReadMemoryName(std::string_view text);

// The same of how the kernel shows such a memfd, in links and in lists of
// mappings: "/memfd:… (deleted)".
std::optional<MemoryName> ReadShownName(std::string_view text);

// The same of the memfd that a link of /proc leads to.
std::optional<MemoryName> ReadLinkedName(const std::string& link);

// The node in `directory`, whatever path leads there: which folder it is, and
// when that was made. It stays while the folder stays, also if the state in it
// is made anew.
absl::StatusOr<std::string> NodeName(const std::string& directory);

}  // namespace sluice::device
