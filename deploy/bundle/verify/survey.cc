// Lists the free and the busy GPUs.
#include <fmt/format.h>

#include "deploy/bundle/verify/check.h"
#include "kernels/device/driver.h"

namespace sluice::verify {
namespace {

using nlohmann::json;

// A GPU is busy if more than 1/16 of its memory is in use. Idle contexts of
// other processes use less.
constexpr int kIdlePart = 16;

}  // namespace

Result RunSurvey(const Surroundings&) {
  const char* const expected = "a driver with a GPU";
  const auto driver = device::OpenCudaDriver();
  if (!driver.ok()) {
    return Failed({}, expected, std::string(driver.status().message()));
  }
  const auto devices = (*driver)->Devices();
  if (!devices.ok()) {
    return Failed({}, expected, std::string(devices.status().message()));
  }
  json free = json::array(), busy = json::array();
  for (const device::DeviceInfo& gpu : *devices) {
    const auto place = device::Placement::Gpu(gpu.index);
    const auto use = (*driver)->Usage(place);
    if (!use.ok()) {
      return Failed({}, expected,
                    fmt::format("GPU {}: {}", gpu.index.value(),
                                std::string(use.status().message())));
    }
    if (use->used.count() > use->total.count() / kIdlePart) {
      busy.push_back(fmt::format("GPU {}: {} of {} are in use",
                                 gpu.index.value(), FormatBytes(use->used),
                                 FormatBytes(use->total)));
    } else {
      free.push_back(gpu.index.value());
    }
  }
  return Passed({{"free", free}, {"busy", busy}}, expected);
}

}  // namespace sluice::verify
