// Memory for the tests of torch on the fakes, made by the product's driver.
// Errors are thrown as c10::Error.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"

namespace sluice::fake_cuda {

template <typename T>
T Ok(absl::StatusOr<T> value) {
  TORCH_CHECK(value.ok(), std::string(value.status().message()));
  return *std::move(value);
}
inline void Ok(const absl::Status& status) {
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

// Memory that is mapped, for GPU 0, while the object lives.
struct Region {
  device::Driver* driver;
  device::Address address;
  Bytes size;

  Region(device::Driver* on, device::Placement where, Bytes bytes)
      : driver(on), size(bytes) {
    address = Ok(driver->Reserve(size, where.kind));
    const device::Memory memory = Ok(driver->Create(where, size));
    Ok(driver->Map(address, size, memory));
    Ok(driver->Release(memory));
    Ok(driver->SetAccess(address, size, DeviceIndex(0)));
  }
  ~Region() {
    driver->Unmap(address, size).IgnoreError();
    driver->FreeReservation(address, size).IgnoreError();
  }
};

}  // namespace sluice::fake_cuda
