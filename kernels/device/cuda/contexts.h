// The GPUs' primary contexts, made when first needed: a context takes hundreds
// of MiB of its GPU. The daemon makes and hands out memory without one, and has
// one on each GPU all the same, where cuMemGetInfo says what is taken.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/library.h"
#include "proto/base/mutex.h"

namespace sluice::device::cuda {

// A GPU of this process. One that cannot be used keeps its number, so that the
// others keep theirs.
struct Gpu {
  Device device = 0;
  absl::Status fault;  // Unavailable: it cannot be used, and `device` is none
};

// Thread safety: thread-safe.
class Contexts {
 public:
  // REQUIRES: one of them can be used.
  Contexts(const LoadedLibrary* library, std::vector<Gpu> gpus)
      : library_(library), gpus_(std::move(gpus)) {}
  ~Contexts();
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  const std::vector<Gpu>& gpus() const { return gpus_; }
  // The first that can be used.
  DeviceIndex first() const;
  // InvalidArgument: no such GPU. Unavailable: it cannot be used.
  absl::StatusOr<Device> DeviceOf(DeviceIndex gpu) const;
  // Errors as DeviceOf.
  absl::StatusOr<Context> Of(DeviceIndex gpu);
  // A context for calls that name no GPU: the thread's own, else one that was
  // made already, else the first GPU's. A call that names its GPU uses Of():
  // Any() could open a context on a GPU that is not the rank's.
  absl::StatusOr<Context> Any();

 private:
  const LoadedLibrary* const library_;
  const std::vector<Gpu> gpus_;
  Mutex mutex_;
  std::map<DeviceIndex, Context> contexts_ ABSL_GUARDED_BY(mutex_);
};

// Makes a context the thread's own for a scope, and puts the former back:
// torch keeps its own current.
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
