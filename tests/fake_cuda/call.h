// One call of the fake driver, from its entry to its return.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "tests/fake_cuda/world.h"

namespace sluice::fake_cuda {

enum class Needs { kNothing, kInitialised, kContext };

// Holds the world's lock. Starts with what every call is asked: the library is
// initialised, in this process, a context is current and not lost, and no
// failure was ordered.
//
//   Call call("cuMemRelease", Needs::kInitialised, Call::kReleases);
//   if (call.failed()) return call.result();
//   …
//   return call.Done();
class ABSL_SCOPED_LOCKABLE Call {
 public:
  // An ordered failure of a call that releases something is returned after
  // the release: "this function may also return error codes from previous,
  // asynchronous launches" (cuda.h of most of them; assumed of the others).
  enum Kind { kActs, kReleases };

  Call(std::string_view name, Needs needs, Kind kind = kActs)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(TheWorld().mutex);
  ~Call() ABSL_UNLOCK_FUNCTION();
  Call(const Call&) = delete;

  bool failed() const { return result_ != kSuccess; }
  Result result() const { return result_; }
  ContextState* context() const { return context_; }

  // The caller broke a rule.
  Result Refuse(Rule rule, std::string_view detail = "");
  // Whether the driver that is played accepts calls that break this rule.
  bool LetsPass(Rule rule) const;
  // The caller named a range that may not be used on this stream: a driver that
  // is played may find that out late.
  Result RefuseRange(Rule rule, std::string_view detail, StreamState& stream);
  // The caller broke a rule, and the driver that is played let it pass: what it
  // gives when the stream is waited for, it gives on those GPUs.
  void LoseLater(Rule rule, const std::set<int>& gpus);
  // Whether a device exists, is not lost, and may be named: else result() says
  // why.
  bool CheckDevice(int device);
  Result Done() const { return late_; }
  // The live stream of this handle; null is the current context's own. Null:
  // refused, result() says why.
  std::shared_ptr<StreamState> Stream(StreamPointer stream);
  EventState* Event(EventPointer event);
  // Lets go of the world, to wait.
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

// Waits for all streams first if the driver that is played accepts calls that
// break this rule without a later error.
void AwaitWhatIsPlayed(Rule rule);

// After these nothing more can be done in a context (cuda.h: "the process must
// be terminated and relaunched").
bool IsSticky(Result result);

}  // namespace sluice::fake_cuda

// Returns from a call that broke a rule.
#define SLUICE_FAKE_REQUIRE(call, condition, rule)  \
  if (!(condition) && !(call).LetsPass(Rule::rule)) \
  return (call).Refuse(Rule::rule)
