// One call of the fake driver, from entry to return.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "tests/fake_cuda/world.h"

namespace sluice::fake_cuda {

enum class Needs { kNothing, kInitialised, kContext };

// Holds the world's lock. The constructor makes the checks of every call: the
// library was initialised in this process, a context is current and not lost,
// and the setting `fail` orders no failure of this call.
//
//   Call call("cuMemRelease", Needs::kInitialised, Call::kReleases);
//   if (call.failed()) return call.result();
//   …
//   return call.Done();
class ABSL_SCOPED_LOCKABLE Call {
 public:
  // A releasing call releases, and then fails as `fail` orders: "this
  // function may also return error codes from previous, asynchronous launches"
  // (cuda.h says so of most such calls; assumed of the other calls).
  enum Kind { kActs, kReleases };

  Call(std::string_view name, Needs needs, Kind kind = kActs)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(TheWorld().mutex);
  ~Call() ABSL_UNLOCK_FUNCTION();
  Call(const Call&) = delete;

  bool failed() const { return result_ != kSuccess; }
  Result result() const { return result_; }
  ContextState* context() const { return context_; }

  // Records that the caller broke a rule. Returns the code that the emulated
  // driver gave (setting `rules`), or the rule's own code if none is known.
  Result Refuse(Rule rule, std::string_view detail = "");
  // Returns whether the emulated driver accepts calls that break this rule.
  bool LetsPass(Rule rule) const;
  // Refuses the call because `stream` may not use a range of addresses. If the
  // emulated driver accepts such calls but reports an error when the stream is
  // waited for, enqueues an operation that loses the context with that error.
  Result RefuseRange(Rule rule, std::string_view detail, StreamState& stream);
  // If the emulated driver accepts calls that break this rule but reports an
  // error later, the contexts on `gpus` are lost with that error.
  void LoseLater(Rule rule, const std::set<int>& gpus);
  // Returns whether a device exists and is not lost. If not, result() is the
  // error.
  bool CheckDevice(int device);
  // Returns success, or the error that a releasing call returns after its
  // release: the one that `fail` orders, or the error of the lost context.
  Result Done() const { return late_; }
  // Returns the live stream of this handle; a null handle means the current
  // context's own stream. Returns null if the call is refused; result() is the
  // error.
  std::shared_ptr<StreamState> Stream(StreamPointer stream);
  EventState* Event(EventPointer event);
  // Releases the world's lock, so that the call may wait.
  void Unlock() ABSL_UNLOCK_FUNCTION();

 private:
  void Enter(Needs needs, Kind kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_.mutex);
  void SeeTheEndOf(const ContextState& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_.mutex);

  const std::string name_;
  World& world_;
  bool held_ = true;
  Result result_ = kSuccess;
  Result late_ = kSuccess;
  ContextState* context_ = nullptr;
};

// Waits for all streams if the emulated driver accepts calls that break this
// rule and reports no later error: such a driver must itself wait.
void AwaitWhatIsPlayed(Rule rule);

// Returns whether an error makes its context unusable (cuda.h: "the process
// must be terminated and relaunched").
bool IsSticky(Result result);

}  // namespace sluice::fake_cuda

// Refuses the call and returns from its function if `condition` is false and
// the emulated driver refuses calls that break the rule.
#define SLUICE_FAKE_REQUIRE(call, condition, rule)  \
  if (!(condition) && !(call).LetsPass(Rule::rule)) \
  return (call).Refuse(Rule::rule)
