// The GPUs' primary contexts. Each takes hundreds of MiB of its GPU, so it is
// made when it is first needed. The daemon needs none to make and hand out
// memory, but has one on each GPU, because cuMemGetInfo asks for it.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/library.h"
#include "proto/base/mutex.h"

namespace sluice::device::cuda {

// A GPU of this process. A GPU that cannot be used keeps its number, so that
// the numbers of the others do not change.
struct Gpu {
  Device device = 0;
  absl::Status fault;  // Unavailable: unusable, no `device`
};

// Thread safety: thread-safe.
class Contexts {
 public:
  // REQUIRES: at least one GPU can be used.
  Contexts(const LoadedLibrary* library, std::vector<Gpu> gpus)
      : library_(library), gpus_(std::move(gpus)) {}
  ~Contexts();
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  const std::vector<Gpu>& gpus() const { return gpus_; }
  // The first GPU that can be used.
  DeviceIndex first() const;
  // InvalidArgument: no such GPU. Unavailable: the GPU cannot be used.
  absl::StatusOr<Device> DeviceOf(DeviceIndex gpu) const;
  // Errors are those of DeviceOf.
  absl::StatusOr<Context> Of(DeviceIndex gpu);
  // A context for calls that name no GPU: the thread's own, else one that
  // exists already, else the first GPU's. A call that names its GPU uses Of(),
  // because Any() could open a context on a GPU that is not the rank's.
  absl::StatusOr<Context> Any();

 private:
  const LoadedLibrary* const library_;
  const std::vector<Gpu> gpus_;
  Mutex mutex_;
  std::map<DeviceIndex, Context> contexts_ ABSL_GUARDED_BY(mutex_);
};

// Makes a context current for a scope and then restores the former one: torch
// relies on its own current context.
class ContextScope {
 public:
  static absl::StatusOr<ContextScope> Enter(const LoadedLibrary* library,
                                            absl::StatusOr<Context> context);
  ContextScope(ContextScope&& other) noexcept
      : library_(std::exchange(other.library_, nullptr)) {}
  ~ContextScope();

 private:
  explicit ContextScope(const LoadedLibrary* library) : library_(library) {}
  const LoadedLibrary* library_;
};

}  // namespace sluice::device::cuda
