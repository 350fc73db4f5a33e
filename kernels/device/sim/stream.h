// A simulated copy stream: one thread that executes its operations in order. On
// an idle stream the calling thread itself records events, and fills or (over a
// link of unlimited speed) copies up to kMostAtOnce bytes, because waking the
// stream's thread would cost more CPU. With poisoned buffers the stream's
// thread executes every copy and fill, so that data arrives after the call.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/link.h"
#include "kernels/device/sim/node.h"
#include "proto/base/mutex.h"

namespace sluice::device {

// One recording of an event. Recording the event again makes a new Completion,
// so a wait keeps waiting for the recording that preceded it, as in CUDA.
class Completion {
 public:
  // Returns a completion that is done, for work of the calling thread.
  static std::shared_ptr<Completion> Now() {
    auto now = std::make_shared<Completion>();
    now->Finish();
    return now;
  }
  bool done() const { return done_.load(std::memory_order_acquire) != 0; }
  // `status` is the fault of the stream that completes.
  void Finish(absl::Status status = absl::OkStatus()) {
    status_ = std::move(status);
    time_ns_ = MonotonicNs();
    done_.store(1, std::memory_order_release);
    done_.notify_all();
  }
  void Wait() const { done_.wait(0, std::memory_order_acquire); }

  // Return the monotonic time and the status of Finish. REQUIRES: done().
  int64_t time_ns() const { return time_ns_; }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;  // written before done() returns true, as time_ns_ is
  int64_t time_ns_ = 0;
  std::atomic<uint32_t> done_{0};
};

struct CopyOperation {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  Bytes size;
  CopyDirection direction = CopyDirection::kHostToDevice;
};

struct FillOperation {
  std::byte* to = nullptr;
  std::byte value{};
  Bytes size;
};

inline constexpr Bytes kMostAtOnce = MiB(1);

// The destructor waits for enqueued work. Thread safety: thread-safe.
class SimStream {
 public:
  SimStream(const NodeMapping* node, DeviceIndex gpu);
  ~SimStream();
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  DeviceIndex gpu() const { return gpu_; }
  // Returns the stream's first failure. Copies after it are not made, so that
  // half a chunk is never mistaken for a whole one, but events still complete.
  absl::Status status() const;

  void Copy(const CopyOperation& copy);
  void Fill(const FillOperation& fill);
  void Record(std::shared_ptr<Completion> completion);
  void Wait(std::shared_ptr<Completion> completion);

 private:
  struct Operation {
    enum class Kind { kCopy, kFill, kRecord, kWait } kind;
    int64_t enqueued_ns;
    CopyOperation copy;
    FillOperation fill;
    std::shared_ptr<Completion> completion;
  };

  void Push(Operation operation);
  // Executes `operation` on the calling thread if `is_instant` and the stream
  // is idle, else enqueues it.
  void Move(const Operation& operation, bool is_instant);
  // Claims an idle stream for the calling thread; Finish releases the stream.
  bool TryBegin();
  void Finish();
  void Run();
  bool Next(Operation& operation);
  void Execute(const Operation& operation);
  void ExecuteCopy(const CopyOperation& copy);

  const NodeMapping* const node_;
  const DeviceIndex gpu_;
  int64_t ready_ns_ = 0;  // virtual time; used by the executing thread only
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  // True while a thread executes an operation.
  bool executing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses all members above
};

}  // namespace sluice::device
