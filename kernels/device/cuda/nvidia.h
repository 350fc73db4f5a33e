// Finds out whether this machine has an NVIDIA GPU, even if its driver does not
// work. Thread safety: reads the file system only.
#pragma once

#include <string>

namespace sluice::device {

// Returns the evidence of a GPU ("/dev/nvidia0", "PCI device 0000:3b:00.0"), or
// "". Device files and /proc/driver/nvidia exist while the kernel module is
// loaded; the PCI bus needs no module. `root` is a prefix of paths, for tests.
std::string FindNvidiaDevice(const std::string& root = "");

// Returns the device node of the GPU with this UUID ("/dev/nvidia3"). Finds it
// by the minor number that the driver shows in /proc; "" if it shows none.
std::string NvidiaDeviceNode(const std::string& uuid,
                             const std::string& root = "");

}  // namespace sluice::device
