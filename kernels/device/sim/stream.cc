#include "kernels/device/sim/stream.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/poison.h"

namespace sluice::device {
namespace {

// The default timer slack of 50 us would delay the end of every slice.
constexpr unsigned long kTimerSlackNs = 5'000;

// With poisoned buffers every copy arrives late, which shows a missing wait.
bool IsSmall(Bytes size) { return !PoisonsBuffers() && size <= kMostAtOnce; }

}  // namespace

SimStream::SimStream(const NodeMapping* node, DeviceIndex gpu)
    : node_(node), gpu_(gpu), thread_([this] { Run(); }) {}

SimStream::~SimStream() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

absl::Status SimStream::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

void SimStream::Copy(const CopyOperation& copy) {
  Move({.kind = Operation::Kind::kCopy,
        .enqueued_ns = MonotonicNs(),
        .copy = copy},
       IsSmall(copy.size) && !IsThrottled(*node_, gpu_, copy.direction));
}

void SimStream::Fill(const FillOperation& fill) {
  Move({.kind = Operation::Kind::kFill,
        .enqueued_ns = MonotonicNs(),
        .fill = fill},
       IsSmall(fill.size));
}

void SimStream::Move(const Operation& operation, bool is_instant) {
  if (!is_instant || !TryBegin()) return Push(operation);
  Execute(operation);
  Finish();
}

void SimStream::Record(std::shared_ptr<Completion> completion) {
  if (TryBegin()) {
    completion->Finish(status());
    return Finish();
  }
  Push({.kind = Operation::Kind::kRecord,
        .enqueued_ns = MonotonicNs(),
        .completion = std::move(completion)});
}

void SimStream::Wait(std::shared_ptr<Completion> completion) {
  Push({.kind = Operation::Kind::kWait,
        .enqueued_ns = MonotonicNs(),
        .completion = std::move(completion)});
}

void SimStream::Push(Operation operation) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(operation));
  }
  changed_.NotifyOne();
}

bool SimStream::TryBegin() {
  const MutexLock lock(mutex_);
  if (executing_ || !queue_.empty()) return false;
  return executing_ = true;
}

void SimStream::Finish() {
  const MutexLock lock(mutex_);
  executing_ = false;
  // A Push may have woken the thread, which waits again while `executing_`.
  if (!queue_.empty()) changed_.NotifyOne();
}

void SimStream::Run() {
  pthread_setname_np(pthread_self(), "sim-stream");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  Operation operation;
  while (Next(operation)) {
    Execute(operation);
    Finish();
  }
}

// Returns false once the destructor has begun and all work is done.
bool SimStream::Next(Operation& operation) {
  const MutexLock lock(mutex_);
  while (executing_ || (!stopping_ && queue_.empty())) changed_.Wait(mutex_);
  if (queue_.empty()) return false;
  operation = std::move(queue_.front());
  queue_.pop_front();
  return executing_ = true;
}

void SimStream::Execute(const Operation& operation) {
  ready_ns_ = std::max(ready_ns_, operation.enqueued_ns);
  switch (operation.kind) {
    case Operation::Kind::kCopy:
      return ExecuteCopy(operation.copy);
    case Operation::Kind::kFill:
      if (!status().ok()) return;
      std::memset(operation.fill.to, static_cast<int>(operation.fill.value),
                  operation.fill.size.size());
      return;
    case Operation::Kind::kRecord:
      return operation.completion->Finish(status());
    case Operation::Kind::kWait:
      if (operation.completion->done()) return;
      operation.completion->Wait();
      ready_ns_ = std::max(ready_ns_, MonotonicNs());
  }
}

void SimStream::ExecuteCopy(const CopyOperation& copy) {
  if (!status().ok()) return;
  absl::Status status = node_->Enter("Copy");
  if (status.ok()) {
    status = CopyOverLink(*node_, gpu_, copy.to, copy.from, copy.size,
                          copy.direction, ready_ns_);
  }
  if (status.ok()) return;
  const MutexLock lock(mutex_);
  status_ = std::move(status);
}

}  // namespace sluice::device
