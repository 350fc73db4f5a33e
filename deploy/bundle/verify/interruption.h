// Ctrl-C while something is on disk that must not stay.
#pragma once

#include <signal.h>

#include <array>

namespace sluice::verify {

// While it lives SIGINT, SIGTERM and SIGHUP are only noted, whichever thread
// they reach; then the one that came ends the process, as it would have. One at
// a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;

  static bool came();

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_;
};

}  // namespace sluice::verify
