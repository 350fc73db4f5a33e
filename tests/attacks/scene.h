// One attack: a daemon, an honest client, processes of another user that
// attack, and the cost to the honest client.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::testing {

// Returns whether SLUICE_ATTACKS=deep is set.
bool Deep();
// Returns `full` if Deep(), else `reduced`.
int Count(int reduced, int full);

inline constexpr uid_t kAttacker = 61234;

struct Cost {
  std::string attack;
  int requests = 0;
  int failed = 0;  // honest requests that failed or had no session
  absl::Duration p50, p99, max;
  absl::Duration newcomer;  // time to connect, attach and lease
  absl::Duration metrics;   // time of GET /metrics
  Bytes memory;             // the daemon's VmHWM - RssShmem
  int left_sessions = 0, left_descriptors = 0;  // of the attackers
  Bytes left_memory;                            // leased or quarantined
};

class Scene {
 public:
  // Starts a RunningDaemon with these settings and HTTP.
  explicit Scene(const std::string& toml = "", const DaemonLimits& limits = {});

  const std::string& socket() const { return socket_; }
  RunningDaemon& daemon() { return *daemon_; }

  // Runs `attack` as user `uid` in a process of its own, and returns once the
  // attack has printed "ready". The attack goes on until Suffer.
  void Attack(const std::function<void()>& attack, uid_t uid = kAttacker);
  // Measures the honest client during the attack. Then kills the attackers, and
  // counts what the daemon still holds of theirs after at most 30 s.
  Cost Suffer(const std::string& name);

 private:
  void Measure(Cost& cost);
  void LookWhatIsLeft(Cost& cost);

  std::unique_ptr<RunningDaemon> daemon_;
  std::string socket_;
  int descriptors_before_ = 0;
  std::vector<std::unique_ptr<Child>> attackers_;
};

// Changes this process's user, which only root may do. The process still dies
// with the test.
void Become(uid_t uid);
// Prints "ready", once.
void SayReady();

// Expects that no honest request failed and that the attackers left nothing,
// and, if Deep(), that times and memory stayed within limits.
void ExpectUnharmed(const Cost& cost);

}  // namespace sluice::testing
