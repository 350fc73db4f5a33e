// Which operations of a step run before which others, by the order of each
// stream and by the waits between them, and whether a wait adds to that.
//
// Who shows that a race detector finds each wait that is left out needs a word
// of its own on which of them nothing can miss: where all that uses memory is
// in the same order without it, there is nothing to find.
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

namespace sluice::client {

class WaitGraph {
 public:
  // An operation behind all earlier ones of `stream`; its number. Marks and
  // waits use no memory: they only hand on the order.
  size_t Add(int stream, bool uses_memory);
  // Operation `waiter` runs after `waited`, an earlier one; the wait's number.
  // REQUIRES: nothing was added after `waiter`.
  size_t Wait(size_t waiter, size_t waited);

  // Whether any two operations that use memory, and are in order, are so
  // without these waits too.
  bool IsImplied(const std::set<size_t>& waits) const;

 private:
  struct Operation {
    bool uses_memory = false;
    std::optional<size_t> before;                  // in its stream
    std::vector<std::pair<size_t, size_t>> waits;  // number, waited for
  };
  using Bits = std::vector<uint64_t>;

  // Of each operation, which others run before it. They were all added before
  // it, so one pass is enough.
  std::vector<Bits> Order(const std::set<size_t>& without) const;

  std::vector<Operation> operations_;
  std::map<int, size_t> last_;  // of a stream
  size_t waits_ = 0;
};

}  // namespace sluice::client
