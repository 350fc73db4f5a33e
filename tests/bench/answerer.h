#pragma once

#include <memory>
#include <vector>

#include "proto/base/unique_fd.h"
#include "tests/support/child.h"

namespace sluice::bench {

// A child process that answers each request at once: a lease with a grant of no
// extents, a free with "freed". Its latency is the time that sockets, processes
// and the machine take without a daemon's work.
class Answerer {
 public:
  explicit Answerer(int sessions);
  // Returns the caller's socket of each session.
  std::vector<int> sockets() const;

 private:
  std::vector<UniqueFd> sockets_;
  std::unique_ptr<testing::Child> child_;
};

}  // namespace sluice::bench
