// The same load on a process that does nothing: what the sockets, the two
// processes and the machine itself take of a pair's time.
#pragma once

#include <memory>
#include <vector>

#include "proto/base/unique_fd.h"
#include "tests/support/child.h"

namespace sluice::bench {

// A child process that answers each request as it comes: a lease with one that
// has no extents, a free with one that is done.
class Answerer {
 public:
  explicit Answerer(int sessions);
  // This end of each session.
  std::vector<int> sockets() const;

 private:
  std::vector<UniqueFd> sockets_;
  std::unique_ptr<testing::Child> child_;
};

}  // namespace sluice::bench
