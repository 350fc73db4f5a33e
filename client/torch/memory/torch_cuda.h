// The part of torch that exists only with NVIDIA's libraries: its CUDA
// operators, its streams, its allocator's interface. LoadTorchCuda opens
// torch's libtorch_cuda.so, which registers the operators, and then Sluice's
// module (client/torch/cuda), which implements this class. Both stay for the
// process's life.
//
// Thread safety: LoadTorchCuda from any thread; the allocator has its own lock.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::runtime {

class TorchCuda {
 public:
  virtual ~TorchCuda() = default;

  // Sets the calling thread's current GPU. A library that has used another GPU
  // returns to the current one, and the return makes a context there. So a
  // rank's thread selects its own GPU before anything else.
  virtual void SetDevice(c10::DeviceIndex device) = 0;

  // Returns the calling thread's stream, on which torch enqueues (a CUstream;
  // null is the default stream). For CopyEngine::UseStream.
  virtual void* CurrentStream(c10::DeviceIndex device) const = 0;

  // Makes `stream`, which torch does not own, the calling thread's stream.
  virtual void SetCurrentStream(c10::DeviceIndex device, void* stream) = 0;

  // From now on `region` serves every CUDA allocation of the process, in the
  // order of the current stream. Throws c10::Error for an allocation while
  // another stream is current or on another device, for recordStream of another
  // stream, and for IPC, pools and snapshots. `region` outlives this object or
  // is removed before its end.
  virtual void Install(c10::Allocator* region, c10::Device device) = 0;
  // Restores torch's former allocator.
  virtual void Remove() = 0;

  // Frees the workspaces that torch keeps for cuBLAS, of all threads and
  // streams; a later product allocates one again. Call it when nothing uses
  // them any more, and before their memory is released.
  virtual void DropWorkspaces() = 0;

  // Fills memory of the device in the order of Install's stream. Never throws:
  // the stream's next operation reports an error of the stream.
  virtual void Fill(void* to, uint8_t value, size_t size) const = 0;
};

struct TorchCudaLibraries {
  // Searched for by dlopen: in the program's own folders, then the system's.
  std::string torch = "libtorch_cuda.so";
  std::string module = "libsluice_torch_cuda.so";
};

// Unavailable: a library is missing (torch's, one of NVIDIA's, the module),
// with the loader's reason and what to do. The next call tries again.
absl::StatusOr<TorchCuda*> LoadTorchCuda(
    const TorchCudaLibraries& libraries = {});
// Returns what was loaded, or null.
TorchCuda* LoadedTorchCuda();

}  // namespace sluice::runtime
