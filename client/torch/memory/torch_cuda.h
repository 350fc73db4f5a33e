// What of torch exists only where NVIDIA's libraries do: its CUDA operators,
// its streams, its allocator's interface.
//
// A program of ours needs none of it to start. LoadTorchCuda opens torch's own
// libtorch_cuda.so, which registers the operators, and then our module
// (client/torch/cuda), which is this class; both stay for the process's life.
//
// Thread safety: Load from any thread; what is installed is the allocator's to
// lock (RegionAllocator).
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

  // The calling thread's current GPU from now on. Libraries go back to it when
  // they have been on another, which makes a context there: so a rank's thread
  // is on its own GPU before anything else.
  virtual void SetDevice(c10::DeviceIndex device) = 0;

  // Torch's current stream of the calling thread: what it enqueues goes there
  // (a CUstream; null is the device's default stream). For
  // CopyEngine::UseStream.
  virtual void* CurrentStream(c10::DeviceIndex device) const = 0;

  // Sets it to a stream that has another owner.
  virtual void SetCurrentStream(c10::DeviceIndex device, void* stream) = 0;

  // From now on `region` serves every CUDA allocation of the process. Blocks
  // are reused in the order of one stream, the current one of this call, so
  // c10::Error: an allocation while another is current, or of another device;
  // recordStream of another one; IPC, pools and snapshots, which a region has
  // not. `region` outlives it or is taken off again.
  virtual void Install(c10::Allocator* region, c10::Device device) = 0;
  // Torch has the allocator it had before.
  virtual void Remove() = 0;

  // Torch gives back what it keeps for cuBLAS, of all threads and streams; a
  // product later takes it anew. To be called when nothing uses it any more,
  // before the memory that it lies in goes.
  virtual void DropWorkspaces() = 0;

  // Fills memory of the device in the order of the stream of Install. Throws
  // nothing: what is wrong with the stream, its next operation says.
  virtual void Fill(void* to, uint8_t value, size_t size) const = 0;
};

struct TorchCudaLibraries {
  // As dlopen finds them: the program's own folders, then the system's.
  std::string torch = "libtorch_cuda.so";
  std::string module = "libsluice_torch_cuda.so";
};

// Unavailable: a library is missing (torch's own, one of NVIDIA's that it
// needs, or our module), with the loader's reason and what to do. A failure is
// not kept: the next call tries again.
absl::StatusOr<TorchCuda*> LoadTorchCuda(
    const TorchCudaLibraries& libraries = {});
// What was loaded; null: nothing.
TorchCuda* LoadedTorchCuda();

}  // namespace sluice::runtime
