// Finds out whether this machine has an NVIDIA GPU, even if its driver does not
// work. Thread safety: reads the file system only.
#pragma once

#include <string>

namespace sluice::device {

// Returns the evidence of a GPU ("/dev/nvidia0", "PCI device 0000:3b:00.0"), or
// "". Device files and /proc/driver/nvidia exist while the kernel module is
// loaded; the PCI bus needs no module. `root` is a prefix of paths, for tests.
std::string FindNvidiaDevice(const std::string& root = "");

// Returns the device node of the GPU with this UUID ("/dev/nvidia3"), found by
// the minor number in /proc, or "" if the driver shows no such number there.
std::string NvidiaDeviceNode(const std::string& uuid,
                             const std::string& root = "");

}  // namespace sluice::device
