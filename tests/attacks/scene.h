// One attack: a daemon, an honest client, and processes of another user that
// do their worst; and what it cost.
//
// The attacker is another real user (root starts it), because quotas are a
// user's. Counts are reduced; SLUICE_ATTACKS=deep has them in full, pins daemon
// and honest client to core 0 and attackers to core 1, and then asserts the
// limits of the issue. The table is printed either way.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::testing {

// At full strength?
bool Deep();
// `full` when Deep, else `reduced`.
int Count(int reduced, int full);

inline constexpr uid_t kAttacker = 61234;

struct Cost {
  std::string attack;
  int requests = 0;
  int failed = 0;  // honest requests that were refused, or found no session
  absl::Duration p50, p99, max;
  absl::Duration newcomer;  // connects, attaches, leases
  absl::Duration metrics;   // GET /metrics
  Bytes memory;             // VmHWM - RssShmem
  int left_sessions = 0, left_descriptors = 0;
  Bytes left_memory;  // leased or quarantined
};

class Scene {
 public:
  // As RunningDaemon; HTTP is on.
  explicit Scene(const std::string& toml = "", const DaemonLimits& limits = {});

  const std::string& socket() const { return socket_; }
  RunningDaemon& daemon() { return *daemon_; }

  // Runs `attack` as user `uid` in a process of its own. It says "ready" on its
  // stdout once it is under way, and goes on until it is killed.
  void Attack(const std::function<void()>& attack, uid_t uid = kAttacker);
  // The honest client leases and frees, `requests` of each, while the attack
  // goes on; then the attackers are killed, and what is left 5 s later counts.
  Cost Suffer(const std::string& name);

 private:
  void Measure(Cost& cost);
  void LookWhatIsLeft(Cost& cost);

  std::unique_ptr<RunningDaemon> daemon_;
  std::string socket_;
  int descriptors_before_ = 0;
  std::vector<std::unique_ptr<Child>> attackers_;
};

// Makes this process another user's; only root may. It still dies with the
// test.
void Become(uid_t uid);
// Says "ready", once.
void SayReady();

// What every attack must leave whole, and with Deep the limits.
void ExpectUnharmed(const Cost& cost);

}  // namespace sluice::testing
