// Puts the same load on a process that does no work: measures the share of a
// pair's time that the sockets, the two processes and the machine take.
#pragma once

#include <memory>
#include <vector>

#include "proto/base/unique_fd.h"
#include "tests/support/child.h"

namespace sluice::bench {

// A child process that answers each request at once: a lease with a grant of no
// extents, a free with "freed".
class Answerer {
 public:
  explicit Answerer(int sessions);
  // Returns the caller's end of each session.
  std::vector<int> sockets() const;

 private:
  std::vector<UniqueFd> sockets_;
  std::unique_ptr<testing::Child> child_;
};

}  // namespace sluice::bench
