// The node's memory: files in a folder on tmpfs, shared by its processes.
//
// Each file is held by a shared lock of its open file description, which the
// kernel drops with the last descriptor of the last process. A file without a
// holder counts as free, as with a real driver, so a killed process leaves no
// memory in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device/cuda/api.h"
#include "proto/base/unique_fd.h"

namespace sluice::fake_cuda {

using device::cuda::Location;
using device::cuda::Result;

// A process's hold on a piece of memory. Immutable.
struct Allocation {
  UniqueFd file;
  uint64_t id = 0;  // the same in every hold on this memory
  size_t size = 0;
  Location where = {};
  bool exportable = false;
  bool imported = false;
};
using AllocationPointer = std::shared_ptr<const Allocation>;

class Store {
 public:
  // If `folder` is empty, uses the folder that SLUICE_FAKE_CUDA_NODE names. If
  // that is not set, makes a folder in `nodes`, sets the variable for child
  // processes, and removes the folder in Close. With `keep_dead` the memory of
  // an ended process counts as used for ever.
  void Open(const std::string& folder, const std::string& nodes,
            bool keep_dead);
  void Close();
  const std::string& folder() const { return folder_; }

  // Makes memory, and if `dirty` fills it with non-zero bytes. Returns the code
  // for out of memory if fewer than `size` of the `limit` bytes at `where` are
  // free.
  Result Create(Location where, size_t size, size_t limit, bool exportable,
                bool dirty, AllocationPointer& made);
  size_t Used(Location where);
  // Returns an opaque descriptor, as the driver does: it has no size, cannot be
  // mapped, and does not close on exec.
  static int Export(const Allocation& allocation);
  // Returns null if Export did not make the descriptor.
  static AllocationPointer Import(int fd);

 private:
  size_t UsedLocked(Location where);
  UniqueFd Lock() const;

  std::string folder_;
  bool made_ = false;
  bool keep_dead_ = false;
  int made_files_ = 0;
};

}  // namespace sluice::fake_cuda
