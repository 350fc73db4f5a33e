// The name of a piece of simulated memory. It is the name of the memory's
// memfd, which the kernel shows in /proc/PID/fd and /proc/PID/maps of every
// process that has it.
//
//   sluice-sim:NODE:MAKER:gpu0:4194304
//
// A name is given when the memfd is made and cannot change. But any user may
// make a memfd of any name, so a name counts only if the file's owner, which
// the kernel shows too, is trusted (outside.h).
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
  uint64_t maker = 0;  // random number of the driver that made the memory
  Placement where;
  Bytes size;
  bool operator==(const MemoryName&) const = default;
};

// Returns the text for memfd_create.
std::string ToText(const MemoryName& name);
std::optional<MemoryName> ReadMemoryName(std::string_view text);

// Parses a name as /proc shows it: "/memfd:… (deleted)".
std::optional<MemoryName> ReadShownName(std::string_view text);

// Reads the name of the memfd that a link in /proc points to.
std::optional<MemoryName> ReadLinkedName(const std::string& link);

// Names the node by its folder's identity and birth time, not by path. The name
// stays the same while the folder exists, even if the state file is replaced.
absl::StatusOr<std::string> NodeName(const std::string& directory);

}  // namespace sluice::device
