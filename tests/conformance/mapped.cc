#include "tests/conformance/mapped.h"

#include <utility>

#include "proto/base/status.h"

namespace sluice::device {
namespace {

constexpr DeviceIndex kFirstGpu(0);

}  // namespace

Content Pattern(Bytes size, int seed) {
  Content content(size.size());
  auto state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (std::byte& b : content) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(state >> 24);
  }
  return content;
}

absl::StatusOr<std::unique_ptr<Mapped>> Mapped::Map(Driver* driver,
                                                    Memory memory,
                                                    Placement where,
                                                    Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const Address address,
                          driver->Reserve(size, where.kind));
  SLUICE_RETURN_IF_ERROR(driver->Map(address, size, memory));
  const bool on_gpu = where.kind == Placement::Kind::kGpu;
  const DeviceIndex gpu = on_gpu ? DeviceIndex(where.ordinal) : kFirstGpu;
  SLUICE_RETURN_IF_ERROR(driver->SetAccess(address, size, gpu));
  return std::unique_ptr<Mapped>(
      new Mapped(driver, memory, address, size, gpu));
}

absl::StatusOr<std::unique_ptr<Mapped>> Mapped::Create(Driver* driver,
                                                       Placement where,
                                                       Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const Memory memory, driver->Create(where, size));
  return Map(driver, memory, where, size);
}

Mapped::~Mapped() {
  SLUICE_CHECK_OK(driver_->Unmap(address_, size_));
  SLUICE_CHECK_OK(driver_->FreeReservation(address_, size_));
  SLUICE_CHECK_OK(driver_->Release(memory_));
}

absl::Status Mapped::Write(const Content& content) {
  return CopyNow(*driver_, address_, content.data(),
                 Bytes(static_cast<int64_t>(content.size())),
                 CopyDirection::kHostToDevice, gpu_);
}

absl::StatusOr<Content> Mapped::Read() {
  Content content(size_.size());
  SLUICE_RETURN_IF_ERROR(CopyNow(*driver_, content.data(), address_, size_,
                                 CopyDirection::kDeviceToHost, gpu_));
  return content;
}

absl::Status CopyNow(Driver& driver, std::byte* to, const std::byte* from,
                     Bytes size, CopyDirection direction, DeviceIndex gpu) {
  SLUICE_ASSIGN_OR_RETURN(const Stream stream, driver.CreateStream(gpu));
  SLUICE_RETURN_IF_ERROR(driver.CopyAsync(to, from, size, direction, stream));
  SLUICE_RETURN_IF_ERROR(driver.SynchronizeStream(stream));
  return driver.DestroyStream(stream);
}

}  // namespace sluice::device
