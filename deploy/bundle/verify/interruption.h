// Defers Ctrl-C while temporary files must still be deleted.
#pragma once

#include <signal.h>

#include <array>

namespace sluice::verify {

// While an object lives, SIGINT, SIGTERM and SIGHUP are only recorded. The
// destructor raises the recorded signal again. One object at a time.
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
