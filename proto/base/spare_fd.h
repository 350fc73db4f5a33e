// A reserve descriptor for the moment when the process has no free descriptor.
//
// A waiting connection wakes an event loop again and again, even if no
// descriptor is free to accept the connection. The loop then closes the spare
// descriptor, accepts the connection and refuses it. If another thread takes
// the freed descriptor first, the loop must ignore its listener for a moment,
// or it would spin.
//
// Thread safety: one owner.
#pragma once

#include "proto/base/unique_fd.h"

namespace sluice {

class SpareFd {
 public:
  SpareFd() { Refill(); }

  // Returns whether accept failed because of a temporary shortage: of
  // descriptors or kernel memory.
  static bool IsShortage(int error);

  // Accepts the connection that waits at `listener`, so that the caller can
  // refuse and close it. Returns none if no connection waits or it cannot be
  // accepted; try again later.
  UniqueFd Take(int listener);
  // Opens the spare descriptor again. Call it after the refused connection was
  // closed and before the listener is polled again. Does nothing if the spare
  // is open or cannot be opened.
  void Refill();

 private:
  UniqueFd spare_;
};

}  // namespace sluice
