// A descriptor that is kept to be given up when there are no others left.
//
// A connection that waits to be accepted wakes a loop again and again, also
// where no descriptor is free to accept it with. It is taken with the spare one
// and turned away. Where that is not there either, since another thread took it
// meanwhile, only leaving the listener alone for a moment keeps the loop from
// spinning.
//
// Thread safety: one owner.
#pragma once

#include "proto/base/unique_fd.h"

namespace sluice {

class SpareFd {
 public:
  SpareFd() { Refill(); }

  // Whether accept failed with `error` for want of what another moment brings:
  // descriptors, the kernel's memory.
  static bool IsShortage(int error);

  // The connection that waits at `listener`, to be refused and closed. None: it
  // cannot be taken, or none waits; look again later.
  UniqueFd Take(int listener);
  // When what was taken is closed, and before the listener is looked at again.
  // Nothing where it is there, or cannot be had.
  void Refill();

 private:
  UniqueFd spare_;
};

}  // namespace sluice
