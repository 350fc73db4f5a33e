#include "kernels/device/cuda/nvidia.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace sluice::device {
namespace {

// Returns the sorted names in a folder, or none if it does not exist.
std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string FirstWord(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// Accepts nvidia0, nvidiactl, nvidia-uvm, …
bool IsDeviceFile(const std::string& name) {
  return name.starts_with("nvidia");
}

// Returns false for a GPU's sound and USB functions, which are PCI devices too.
bool IsGpu(const std::string& device) {
  return FirstWord(device + "/vendor") == "0x10de" &&
         FirstWord(device + "/class").starts_with("0x03");
}

}  // namespace

std::string FindNvidiaDevice(const std::string& root) {
  for (const std::string& name : Names(root + "/dev")) {
    if (IsDeviceFile(name)) return "/dev/" + name;
  }
  std::error_code error;
  for (const char* path : {"/proc/driver/nvidia", "/proc/driver/nvidia-uvm"}) {
    if (std::filesystem::exists(root + path, error)) return path;
  }
  const std::string bus = "/sys/bus/pci/devices";
  for (const std::string& name : Names(root + bus)) {
    if (IsGpu(root + bus + "/" + name)) return "PCI device " + name;
  }
  return "";
}

std::string NvidiaDeviceNode(const std::string& uuid, const std::string& root) {
  const std::string folder = root + "/proc/driver/nvidia/gpus";
  for (const std::string& name : Names(folder)) {
    // Lines are "GPU UUID: \t GPU-…" and "Device Minor: \t 0".
    std::ifstream file(folder + "/" + name + "/information");
    std::string minor;
    bool same = false;
    for (std::string line; std::getline(file, line);) {
      const size_t colon = line.find(':');
      const size_t value = line.find_first_not_of(" \t", colon + 1);
      if (colon == std::string::npos || value == std::string::npos) continue;
      const std::string key = line.substr(0, colon);
      if (key == "GPU UUID") same = line.substr(value) == uuid;
      if (key == "Device Minor") minor = line.substr(value);
    }
    if (same && !minor.empty()) return "/dev/nvidia" + minor;
  }
  return "";
}

}  // namespace sluice::device
