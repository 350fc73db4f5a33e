// The memory of the machine.
//
// Thread safety: reads the file system only.
#pragma once

#include <string>

#include "proto/base/units.h"

namespace sluice {

struct MachineMemory {
  Bytes total, available;

  // From /proc/meminfo below `root`. Where /proc does not have it
  // (subset=pid), from sysinfo(2), which counts caches as not available.
  static MachineMemory Read(const std::string& root = "");
};

}  // namespace sluice
