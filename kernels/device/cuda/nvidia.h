// Whether this machine has an NVIDIA GPU, whatever its driver says.
//
// Thread safety: reads the file system only.
#pragma once

#include <string>

namespace sluice::device {

// What says so, for a message ("/dev/nvidia0", "PCI device 0000:3b:00.0");
// empty: nothing does. Device files and /proc/driver/nvidia are there while the
// kernel module is loaded; the PCI bus lists a GPU also when it is not.
// `root` stands before every path, for tests.
std::string FindNvidiaDevice(const std::string& root = "");

// The device node of the GPU with this UUID ("/dev/nvidia3"), by the minor
// number that the driver shows in /proc; empty if it shows none.
std::string NvidiaDeviceNode(const std::string& uuid,
                             const std::string& root = "");

}  // namespace sluice::device
