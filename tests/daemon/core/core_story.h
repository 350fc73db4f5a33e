// A story of a core: instructions, executed one after the other, invariants
// after each. Instructions are plain numbers, each reduced to what there is
// when it comes, so that any list of them is a story, and what is left of a
// failing one when some are taken out.
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

// To be pasted between braces.
std::string ToText(const Instructions& instructions);

class CoreStory {
 public:
  // The core's saved form is read and compared, and its shadow started anew
  // (CoreDriver), after so many instructions; 0: never.
  struct Every {
    int save = 1, shadow = 100;
  };
  CoreStory() : CoreStory(Every{}) {}
  explicit CoreStory(Every every);

  // Fails by SLUICE_CHECK, as the core does.
  void Run(const Instructions& instructions);
  // Ends all sessions; nothing may be left.
  void Finish();

  // Called after each event.
  void Watch(std::function<void(Core&)> watch) {
    node_.watch = std::move(watch);
  }

  int granted() const { return granted_; }
  int changes() const { return changes_; }
  // That were granted after they had waited.
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
  std::map<SessionId, uint32_t> open_;  // and their users
  std::vector<SessionId> closed_;
  // The principal of each extent, learnt from the grants alone: once a
  // principal had it, no other ever does.
  std::map<ExtentId, uint32_t> owner_;
  int granted_ = 0, changes_ = 0;
};

}  // namespace sluice::daemon
