// The GPUs' primary contexts. A context takes hundreds of MiB of its GPU, so it
// is made at its first use (in the daemon by Usage, for cuMemGetInfo).
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/library.h"
#include "proto/base/mutex.h"

namespace sluice::device::cuda {

// An unusable GPU keeps its number, so that the other GPUs' numbers do not
// change.
struct Gpu {
  Device device = 0;
  absl::Status fault;  // Unavailable: the GPU is unusable and has no `device`
};

// Makes and keeps the primary contexts. Thread safety: thread-safe.
class Contexts {
 public:
  // REQUIRES: at least one GPU is usable.
  Contexts(const LoadedLibrary* library, std::vector<Gpu> gpus)
      : library_(library), gpus_(std::move(gpus)) {}
  ~Contexts();
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  const std::vector<Gpu>& gpus() const { return gpus_; }
  // Returns the first usable GPU.
  DeviceIndex first() const;
  // InvalidArgument: no such GPU. Unavailable: the GPU is unusable.
  absl::StatusOr<Device> DeviceOf(DeviceIndex gpu) const;
  // Returns the context of a GPU. Errors are those of DeviceOf.
  absl::StatusOr<Context> Of(DeviceIndex gpu);
  // Returns a context for calls that name no GPU: the thread's current context,
  // else one that Of() has made, else the first GPU's. Any() could make a
  // context on another GPU than the rank's, so calls that name a GPU use Of().
  absl::StatusOr<Context> Any();

 private:
  const LoadedLibrary* const library_;
  const std::vector<Gpu> gpus_;
  Mutex mutex_;
  std::map<DeviceIndex, Context> contexts_ ABSL_GUARDED_BY(mutex_);
};

// Makes a context current for a scope and then restores the previous one,
// because torch relies on the context that it made current.
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
