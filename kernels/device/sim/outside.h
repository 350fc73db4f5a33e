// Finds the memory of a simulated node that living processes hold and this
// driver did not make, such as memory of ranks that outlived their daemon.
//
// The kernel shows descriptors and mappings of every process that this one may
// inspect. A memfd counts, and only once, if its name is of this node
// (memory_name.h) and its file belongs to this process's user or to root, which
// is trusted with any name.
//
// Not found: descriptors in flight, and memory of processes that this one may
// not inspect (in another pid namespace; of another user or not dumpable,
// unless this process is root). Without CAP_CHECKPOINT_RESTORE the kernel does
// not show the file behind a mapping, and only mappings in processes of this
// user count.
//
// A search takes milliseconds, and waits for any process that keeps its address
// space locked, so do not search on a thread that other threads wait for.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "kernels/device/driver.h"

namespace sluice::device {

// The memory that the search ignores: that of one driver, by the maker number
// in its names, and the memory that the driver has adopted, by inode.
struct Own {
  uint64_t maker = 0;
  std::set<uint64_t> adopted;
};
// Returns the found bytes by place; `node` is a NodeName.
std::map<Placement, Bytes> FindOutside(const std::string& node, const Own& own);

}  // namespace sluice::device
