// The name of a piece of simulated memory: that of its memfd, which the kernel
// shows in /proc/PID/fd and /proc/PID/maps of every process that has it.
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
  uint64_t maker = 0;  // a driver's random number
  Placement where;
  Bytes size;
  bool operator==(const MemoryName&) const = default;
};

// The text for memfd_create.
std::string ToText(const MemoryName& name);
// Returns nullopt for any other text.
std::optional<MemoryName> ReadMemoryName(std::string_view text);

// Reads the kernel's form in links and lists of mappings: "/memfd:… (deleted)".
std::optional<MemoryName> ReadShownName(std::string_view text);

// Reads the name of the memfd that a link in /proc leads to.
std::optional<MemoryName> ReadLinkedName(const std::string& link);

// Names the node in `directory` by that folder and its birth time, whatever
// path leads there. The name does not change while the folder exists, even if
// the state in it is made anew.
absl::StatusOr<std::string> NodeName(const std::string& directory);

}  // namespace sluice::device
