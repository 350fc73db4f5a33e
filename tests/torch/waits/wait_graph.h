// Which operations of a step run before which others, by the order of each
// stream and by the waits between them, and whether a wait is needed: whether
// without it two operations that use common bytes, one of them writing, are no
// longer in order.
//
// A test that shows that a race detector finds each wait that is left out must
// know which of them are needed. This class says so, from the order and the
// bytes alone.
//
// Bookkeeping only. Thread safety: none.
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

  // An operation behind all earlier ones of `stream`, and what it uses; its
  // number. Marks and waits use nothing: they only hand on the order.
  size_t Add(int stream, const Accesses& accesses = {});
  // Operation `waiter` runs after `waited`, an earlier one; the wait's number.
  // REQUIRES: nothing was added after `waiter`.
  size_t Wait(size_t waiter, size_t waited);

  // Whether any two operations that conflict are in order, and are no longer so
  // without these waits.
  bool AreNeeded(const std::set<size_t>& waits) const;
  // Whether two operations use common bytes, and one of them writes these.
  bool Conflict(size_t one, size_t other) const;

 private:
  // Begins and ends of addresses that do not touch, in their order.
  using Ranges = std::map<uintptr_t, uintptr_t>;
  struct Operation {
    Ranges read, written;
    std::optional<size_t> before;                  // in its stream
    std::vector<std::pair<size_t, size_t>> waits;  // number, waited for
  };
  using Bits = std::vector<uint64_t>;

  static void Insert(const fake_cuda::Access& access, Ranges* ranges);
  static bool Overlap(const Ranges& some, const Ranges& others);
  // For each operation, the others that run before it. They were all added
  // before it, so one pass is enough.
  std::vector<Bits> Order(const std::set<size_t>& without) const;

  std::vector<Operation> operations_;
  std::map<int, size_t> last_;  // of a stream
  size_t waits_ = 0;
};

}  // namespace sluice::client
