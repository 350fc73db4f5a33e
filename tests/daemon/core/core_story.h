// Runs a story on a core: a list of instructions, executed one after the other,
// with a check of the invariants after each. An instruction selects a session
// or a lease by a number modulo their count. So any list of instructions is a
// valid story, also a failing story without some of its instructions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {

enum class Op : uint8_t {
  kAttach,
  kLease,
  kFree,
  kEndSocket,
  kEndProcess,
  kMake,
  kBudget,
  kTick,
  kSubmit,
  kSolve,
  kTakePlan,
  kDrain,
  kOutside,
  kReserve,
  kWait,
  kGiveUp,
};

struct Instruction {
  Op op = Op::kTick;
  uint32_t a = 0, b = 0, c = 0;
};
using Instructions = std::vector<Instruction>;

Instructions RandomStory(uint32_t seed, int length);

// Returns C++ text for an initializer list.
std::string ToText(const Instructions& instructions);

class CoreStory {
 public:
  // After every `save` instructions, another core reads what the core saves and
  // must save the same. After every `shadow` instructions, the shadow
  // (CoreDriver) is replaced. 0 means never.
  struct Every {
    int save = 1, shadow = 100;
  };
  CoreStory() : CoreStory(Every{}) {}
  explicit CoreStory(Every every);

  // A failure is a failed SLUICE_CHECK, as in the core.
  void Run(const Instructions& instructions);
  // Ends all sessions, and checks that nothing is left.
  void Finish();

  void Watch(std::function<void(Core&)> watch) {
    node_.watch = std::move(watch);
  }

  int granted() const { return granted_; }
  int changes() const { return changes_; }
  int waited() const {
    return static_cast<int>(node_.core.stats().waits[WaitEnd::kGranted]);
  }

 private:
  void Do(const Instruction& in);
  void Attach(const Instruction& in);
  void Lease(const Instruction& in);
  void Free(const Instruction& in);
  void EndSocket(const Instruction& in);
  void EndProcess(const Instruction& in);
  void Make(const Instruction& in);
  void SetBudget(const Instruction& in);
  void Tick(const Instruction& in);
  void Submit(const Instruction& in);
  void Solve(const Instruction& in);
  void TakePlan(const Instruction& in);
  void Drain(const Instruction& in);
  void Outside(const Instruction& in);
  void Reserve(const Instruction& in);
  void Wait(const Instruction& in);
  void GiveUp(const Instruction& in);
  void NoteGrants();
  SessionId AnyOpen(uint32_t which) const;

  const Every every_;
  CoreDriver node_;
  int done_ = 0;
  std::map<SessionId, uint32_t> open_;  // with their uids
  std::vector<SessionId> closed_;
  // The uid to which each extent was granted. An extent of one principal must
  // never go to another principal.
  std::map<ExtentId, uint32_t> owner_;
  int granted_ = 0, changes_ = 0;
};

}  // namespace sluice::daemon
