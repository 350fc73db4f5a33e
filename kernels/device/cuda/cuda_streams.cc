// Streams, events, copies and launches of the cuda driver.
#include <fmt/format.h>

#include <utility>

#include "kernels/device/compute_stream.h"
#include "kernels/device/cuda/cuda_driver.h"
#include "kernels/device/timed_event.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::device::cuda {
absl::StatusOr<StreamPointer> CudaDriver::MakeStream(DeviceIndex device) {
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(device));
  StreamPointer stream = nullptr;
  SLUICE_CUDA(library_, cuStreamCreate,
              fmt::format("on GPU {}", device.value()), &stream,
              kStreamNonBlocking);
  return stream;
}

absl::StatusOr<Stream> CudaDriver::CreateStream(DeviceIndex device) {
  SLUICE_ASSIGN_OR_RETURN(const StreamPointer stream, MakeStream(device));
  const Stream handle(next_id_++);
  const MutexLock lock(stream_mutex_);
  streams_.emplace(handle, StreamEntry{stream, device});
  return handle;
}

absl::Status CudaDriver::DestroyStream(Stream stream) {
  if (IsCompute(stream)) {
    return absl::InvalidArgumentError(
        fmt::format("there is no stream {}", stream.value()));
  }
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry entry, Find(stream));
  if (entry.adopted) {
    return absl::InvalidArgumentError(fmt::format(
        "stream {} is not the driver's to destroy", stream.value()));
  }
  // First what can fail with the stream still there.
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
  {
    const MutexLock lock(stream_mutex_);
    streams_.erase(stream);
  }
  SLUICE_CUDA(library_, cuStreamDestroy_v2, "", entry.stream);
  return absl::OkStatus();
}

Stream CudaDriver::ComputeStream(DeviceIndex device) {
  return ComputeStreamOf(device);
}

absl::StatusOr<Stream> CudaDriver::AdoptStream(DeviceIndex device,
                                               void* native) {
  SLUICE_RETURN_IF_ERROR(Enter(device).status());  // is there such a GPU?
  const auto pointer = static_cast<StreamPointer>(native);
  const MutexLock lock(stream_mutex_);
  for (const auto& [handle, entry] : streams_) {
    if (entry.adopted && entry.stream == pointer && entry.device == device) {
      return handle;
    }
  }
  const Stream handle(next_id_++);
  streams_.emplace(handle, StreamEntry{pointer, device, /*adopted=*/true});
  return handle;
}

absl::StatusOr<void*> CudaDriver::NativeStream(Stream stream) {
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry entry, Find(stream));
  return entry.stream;
}

absl::StatusOr<CudaDriver::StreamEntry> CudaDriver::Find(Stream stream) {
  const MutexLock lock(stream_mutex_);
  const auto it = streams_.find(stream);
  if (it != streams_.end()) return it->second;
  if (!IsCompute(stream)) {
    return absl::InvalidArgumentError(
        fmt::format("there is no stream {}", stream.value()));
  }
  const DeviceIndex device = ComputeGpu(stream);
  SLUICE_ASSIGN_OR_RETURN(const StreamPointer made, MakeStream(device));
  return streams_.emplace(stream, StreamEntry{made, device}).first->second;
}

Event CudaDriver::NewEvent(bool timed) {
  const Event handle(next_id_++);
  const MutexLock lock(stream_mutex_);
  events_.emplace(handle, EventEntry{.timed = timed});
  return handle;
}

absl::StatusOr<Event> CudaDriver::CreateEvent() {
  return NewEvent(/*timed=*/false);
}

absl::StatusOr<Event> CudaDriver::CreateTimedEvent() {
  return NewEvent(/*timed=*/true);
}

absl::StatusOr<CudaDriver::EventEntry> CudaDriver::Find(Event event) const {
  const MutexLock lock(stream_mutex_);
  const auto it = events_.find(event);
  if (it != events_.end()) return it->second;
  return absl::InvalidArgumentError(
      fmt::format("there is no event {}", event.value()));
}

absl::Status CudaDriver::DestroyEvent(Event event) {
  SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
  if (entry.event == nullptr) {
    const MutexLock lock(stream_mutex_);
    events_.erase(event);
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
  {
    const MutexLock lock(stream_mutex_);
    events_.erase(event);
  }
  // Waits that were enqueued keep what they need.
  SLUICE_CUDA(library_, cuEventDestroy_v2, "", entry.event);
  return absl::OkStatus();
}

// The event in the context of `device`, which is current.
absl::StatusOr<EventPointer> CudaDriver::EventOn(Event event,
                                                 DeviceIndex device) {
  const MutexLock lock(stream_mutex_);
  const auto it = events_.find(event);
  if (it == events_.end()) {
    return absl::InvalidArgumentError(
        fmt::format("there is no event {}", event.value()));
  }
  EventEntry& entry = it->second;
  if (entry.event != nullptr && entry.device == device) return entry.event;
  if (entry.event != nullptr) {
    SLUICE_CUDA(library_, cuEventDestroy_v2, "",
                std::exchange(entry.event, nullptr));
  }
  SLUICE_CUDA(library_, cuEventCreate, fmt::format("on GPU {}", device.value()),
              &entry.event, entry.timed ? kEventDefault : kEventDisableTiming);
  entry.device = device;
  return entry.event;
}

absl::Status CudaDriver::RecordEvent(Event event, Stream stream) {
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
  SLUICE_ASSIGN_OR_RETURN(const EventPointer pointer,
                          EventOn(event, on.device));
  SLUICE_CUDA(library_, cuEventRecord, "", pointer, on.stream);
  return absl::OkStatus();
}

absl::Status CudaDriver::StreamWaitEvent(Stream stream, Event event) {
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry waiting, Find(stream));
  SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
  if (entry.event == nullptr) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(waiting.device));
  SLUICE_CUDA(library_, cuStreamWaitEvent, "", waiting.stream, entry.event, 0);
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaDriver::QueryEvent(Event event) {
  SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
  if (entry.event == nullptr) return true;
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
  const Result result = library_->functions().cuEventQuery(entry.event);
  if (result == kNotReady) return false;
  SLUICE_RETURN_IF_ERROR(library_->ToStatus(result, "cuEventQuery"));
  return true;
}

absl::StatusOr<std::optional<absl::Duration>> CudaDriver::ElapsedTime(
    Event from, Event to) {
  SLUICE_ASSIGN_OR_RETURN(const EventEntry first, Find(from));
  SLUICE_ASSIGN_OR_RETURN(const EventEntry last, Find(to));
  SLUICE_RETURN_IF_ERROR(
      CheckTimes({first.timed, first.event != nullptr, first.device},
                 {last.timed, last.event != nullptr, last.device}));
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(first.device));
  float milliseconds = 0;
  const Result result = library_->functions().cuEventElapsedTime(
      &milliseconds, first.event, last.event);
  if (result == kNotReady) return std::nullopt;
  SLUICE_RETURN_IF_ERROR(library_->ToStatus(result, "cuEventElapsedTime"));
  return absl::Milliseconds(milliseconds);
}

absl::Status CudaDriver::SynchronizeEvent(Event event) {
  ++event_synchronize_;
  SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
  if (entry.event == nullptr) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
  SLUICE_CUDA(library_, cuEventSynchronize, "", entry.event);
  return absl::OkStatus();
}

absl::Status CudaDriver::SynchronizeStream(Stream stream) {
  ++stream_synchronize_;
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
  SLUICE_CUDA(library_, cuStreamSynchronize, "", on.stream);
  return absl::OkStatus();
}

absl::Status CudaDriver::CopyAsync(Address to, const std::byte* from,
                                   Bytes size, CopyDirection direction,
                                   Stream stream) {
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
  if (size.count() < 0 || to == nullptr || from == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("CopyAsync of {} from {} to {}", FormatBytes(size),
                    static_cast<const void*>(from), static_cast<void*>(to)));
  }
  ++copies_;
  copied_[static_cast<int>(direction)] += size.count();
  if (size == Bytes(0)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
  // Unified addressing tells the direction, also for pinned host memory as
  // the destination of "host to device".
  SLUICE_CUDA(library_, cuMemcpyAsync, RangeName(to, size),
              reinterpret_cast<DevicePointer>(to),
              reinterpret_cast<DevicePointer>(from), size.size(), on.stream);
  return absl::OkStatus();
}

absl::Status CudaDriver::FillAsync(Address to, std::byte value, Bytes size,
                                   Stream stream) {
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
  if (size.count() < 0 || to == nullptr) {
    return absl::InvalidArgumentError(fmt::format(
        "FillAsync of {} at {}", FormatBytes(size), static_cast<void*>(to)));
  }
  if (size == Bytes(0)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
  SLUICE_CUDA(library_, cuMemsetD8Async, RangeName(to, size),
              reinterpret_cast<DevicePointer>(to),
              static_cast<unsigned char>(value), size.size(), on.stream);
  return absl::OkStatus();
}

absl::Status CudaDriver::Launch(Function function, const LaunchShape& shape,
                                std::span<void*> arguments, Stream stream) {
  SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
  Kernel kernel = nullptr;
  {
    const MutexLock lock(stream_mutex_);
    const auto it = functions_.find(function);
    if (it == functions_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("there is no function {}", function.value()));
    }
    kernel = it->second;
  }
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
  // A kernel of a library stands for its function in the current context.
  SLUICE_CUDA(library_, cuLaunchKernel, "", kernel, shape.grid[0],
              shape.grid[1], shape.grid[2], shape.block[0], shape.block[1],
              shape.block[2], shape.shared_bytes, on.stream, arguments.data(),
              nullptr);
  return absl::OkStatus();
}

}  // namespace sluice::device::cuda
