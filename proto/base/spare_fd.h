// A reserve descriptor for the moment when the process has no free descriptor.
//
// A connection that waits to be accepted wakes an event loop again and again,
// even if no descriptor is free to accept it. The loop then closes the spare
// descriptor, accepts the connection and refuses it. If another thread took the
// freed descriptor, the loop must ignore its listener for a moment, or it would
// spin.
//
// Thread safety: one owner.
#pragma once

#include "proto/base/unique_fd.h"

namespace sluice {

class SpareFd {
 public:
  SpareFd() { Refill(); }

  // Returns whether accept failed because of a shortage that may pass:
  // descriptors or kernel memory.
  static bool IsShortage(int error);

  // Accepts the connection that waits at `listener`, to be refused and closed.
  // Returns none if no connection waits or it cannot be accepted; try again
  // later.
  UniqueFd Take(int listener);
  // Opens the spare descriptor again. Call it after the refused connection was
  // closed and before the listener is polled again. Does nothing if the spare
  // is open or cannot be opened.
  void Refill();

 private:
  UniqueFd spare_;
};

}  // namespace sluice
