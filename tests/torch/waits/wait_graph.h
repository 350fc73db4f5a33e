// The order of a step's operations, by their streams and by the waits between
// them. A wait is needed if without it two operations that use common bytes, at
// least one of them writing, are no longer ordered. WaitGraph finds the needed
// waits from the order and the bytes alone.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/fake_cuda/control.h"

namespace sluice::client {

class WaitGraph {
 public:
  using Accesses = std::vector<fake_cuda::Access>;

  // Adds an operation behind all earlier ones of `stream`, with its accesses.
  // Returns its number. Marks and waits access nothing; they only pass on the
  // order.
  size_t Add(int stream, const Accesses& accesses = {});
  // Lets operation `waiter` run after `waited`, an earlier operation. Returns
  // the wait's number. REQUIRES: nothing was added after `waiter`.
  size_t Wait(size_t waiter, size_t waited);

  // Returns whether removing `waits` leaves conflicting operations unordered.
  bool AreNeeded(const std::set<size_t>& waits) const;
  // Returns whether the operations share bytes that at least one writes.
  bool Conflict(size_t one, size_t other) const;

 private:
  // Begins and ends of disjoint address ranges, in order.
  using Ranges = std::map<uintptr_t, uintptr_t>;
  struct Operation {
    Ranges read, written;
    std::optional<size_t> before;  // the previous operation of its stream
    // Numbers of its waits, with the operations that they await.
    std::vector<std::pair<size_t, size_t>> waits;
  };
  using Bits = std::vector<uint64_t>;

  static void Insert(const fake_cuda::Access& access, Ranges* ranges);
  static bool Overlap(const Ranges& some, const Ranges& others);
  // Returns, for each operation, the operations that run before it. All of them
  // were added before it, so one pass is enough.
  std::vector<Bits> Order(const std::set<size_t>& without) const;

  std::vector<Operation> operations_;
  std::map<int, size_t> last_;  // each stream's last operation
  size_t waits_ = 0;
};

}  // namespace sluice::client
