#include "proto/base/machine_memory.h"

#include <sys/sysinfo.h>

#include <cstdint>
#include <fstream>

namespace sluice {

MachineMemory MachineMemory::Read(const std::string& root) {
  struct sysinfo info = {};
  sysinfo(&info);
  const auto bytes = [&](uint64_t units) {
    return Bytes(static_cast<int64_t>(units * info.mem_unit));
  };
  MachineMemory memory{bytes(info.totalram), bytes(info.freeram)};
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemTotal:") memory.total = KiB(kib);
    if (key == "MemAvailable:") memory.available = KiB(kib);
  }
  return memory;
}

}  // namespace sluice
