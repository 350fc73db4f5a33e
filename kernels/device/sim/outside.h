// Finds what living processes hold of a simulated node that this driver did not
// make: ranks that outlived their daemon, and their children.
//
// The kernel is the only source: the descriptors and mappings of every process
// that this one may inspect, each memfd counted once. A memfd counts if its
// name says so (memory_name.h) and its file belongs to this process's user or
// to root, which may claim anything of this node. A large sparse memfd of
// another user with such a name is ignored. A place counts at most its size.
//
// Not seen: descriptors in flight, and processes that this one may not inspect
// (in another pid namespace; of another user or not dumpable, unless this
// process is root). If the kernel does not show the file behind a mapping
// (CAP_CHECKPOINT_RESTORE), only mappings in processes of this user count.
//
// A search takes milliseconds. It waits for a process that keeps its address
// space locked, so it must not run on a thread that others wait for.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "kernels/device/driver.h"

namespace sluice::device {

// What the search leaves out: a driver's memory, by the number in its names,
// and what the driver has adopted, by inode.
struct Own {
  uint64_t maker = 0;
  std::set<uint64_t> adopted;
};
// By place; `node` is a NodeName.
std::map<Placement, Bytes> FindOutside(const std::string& node, const Own& own);

}  // namespace sluice::device
