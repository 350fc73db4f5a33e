// The thread of a store: batches, and another keeper in the place of one that
// died.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/time/clock.h"
#include "daemon/crash/crash_point.h"
#include "daemon/store/descriptor_store.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Between keepers that do not come to hold everything: doubled each time.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);
// How late an end is noticed while a keeper is waited for.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

absl::Time Now() { return MonotonicClock().Now(); }

}  // namespace

void DescriptorStore::Work() {
  while (WaitForWork()) {
    if (lost_ || (keeper_ && keeper_->HasEnded())) {
      ReplaceKeeper();
      continue;
    }
    std::deque<Item> batch = std::exchange(unsent_, {});
    {
      const MutexLock lock(mutex_);
      std::move(queue_.begin(), queue_.end(), std::back_inserter(batch));
      queue_.clear();
    }
    SendBatch(std::move(batch));
  }
  TakeEverything();
  AnswerWaiting(absl::CancelledError("the descriptor store was closed"));
}

bool DescriptorStore::IsEnding() const {
  const MutexLock lock(mutex_);
  return stopping_;
}

void DescriptorStore::Sleep(absl::Duration time) {
  const absl::Time end = Now() + time;
  for (absl::Time now = Now(); now < end && !IsEnding(); now = Now()) {
    absl::SleepFor(std::min(end - now, kLookAgain));
  }
}

bool DescriptorStore::WaitForWork() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return false;
      if (!queue_.empty() || lost_) return true;
    }
    if (keeper_ && keeper_->HasEnded()) return true;
    std::array<pollfd, 2> polls = {
        {{wake_.get(), POLLIN, 0}, {keeper_ ? keeper_->fd() : -1, POLLIN, 0}}};
    poll(polls.data(), polls.size(), -1);
    eventfd_t woken;
    eventfd_read(wake_.get(), &woken);
  }
}

// What changes the store is sent in order, or a removal would pass the put that
// it is of: behind a fault it waits for the next batch. What is only told is
// tried all the same.
absl::Status DescriptorStore::SendAll(std::deque<Item>& batch,
                                      absl::Time deadline) {
  absl::Status met;
  for (Item& item : batch) {
    if (item.done) continue;
    absl::Status sent;
    if (!item.changes_store || unsent_.empty()) {
      sent =
          socket_->Send(item.message, deadline, item.fd ? item.fd->get() : -1);
      if (met.ok()) met = sent;
      Pass(CrashPoint::kMessageSent);
    }
    const bool is_sent = sent.ok() && unsent_.empty();
    if (item.changes_store && !is_sent) unsent_.push_back(std::move(item));
    item.fd.reset();
  }
  return met;
}

void DescriptorStore::SendBatch(std::deque<Item> batch) {
  const absl::Time deadline = Now() + options_.deadline;
  const bool waited_for = std::any_of(
      batch.begin(), batch.end(),
      [](const Item& item) { return static_cast<bool>(item.done); });
  absl::Status met = SendAll(batch, deadline);
  if (waited_for) {
    if (met.ok()) met = socket_->Barrier(deadline);
    Pass(CrashPoint::kBarrierPassed);
  }
  lost_ = keeper_ && absl::IsUnavailable(met);
  for (Item& item : batch) {
    if (item.done) waiting_.push_back({std::move(item.done), deadline});
  }
  if (!lost_) AnswerWaiting(met);
}

void DescriptorStore::AnswerWaiting(const absl::Status& status) {
  for (Waiting& each : std::exchange(waiting_, {})) {
    Post(std::move(each.done), status);
  }
}

void DescriptorStore::AnswerLate(const absl::Status& status) {
  const absl::Time now = Now();
  std::erase_if(waiting_, [&](Waiting& each) {
    if (now < each.until) return false;
    Post(std::move(each.done), status);
    return true;
  });
}

std::deque<DescriptorStore::Item> DescriptorStore::TakeEverything() {
  std::deque<Item> all;
  unsent_.clear();
  const absl::Time until = Now() + options_.deadline;
  const MutexLock lock(mutex_);
  for (Item& item : std::exchange(queue_, {})) {
    if (item.done) waiting_.push_back({std::move(item.done), until});
  }
  for (const auto& [name, fd] : kept_) {
    if (fd) all.push_back(PutOf(name, fd));
  }
  return all;
}

absl::Status DescriptorStore::Refill() {
  const absl::Time deadline = Now() + options_.deadline;
  SLUICE_RETURN_IF_ERROR(socket_->Connect(deadline, keeper_->fd()));
  std::deque<Item> all = TakeEverything();
  SLUICE_RETURN_IF_ERROR(SendAll(all, deadline));
  return socket_->Barrier(deadline);
}

// Until one holds everything. Nothing else is sent meanwhile, and what is put
// and removed counts by the next time that everything is taken.
void DescriptorStore::ReplaceKeeper() {
  const absl::Time since = Now();
  const absl::Time late = since + options_.deadline;
  // The kernel closes a dying process's socket a little before its end shows.
  while (!keeper_->EndsWithin(kLookAgain)) {
    if (IsEnding()) return;
    if (Now() < late) continue;
    lost_ = false;
    return AnswerWaiting(absl::UnavailableError(
        fmt::format("nobody listens at {}, though the keeper lives: it may "
                    "have been removed",
                    options_.notify_socket)));
  }
  Say(
      fmt::format("the keeper (process {}) died, and holds nothing any more: "
                  "another one is started",
                  keeper_->pid()));
  absl::Duration pause = kFirstPause;
  for (unsigned failed = 0; !IsEnding();) {
    absl::Status held = keeper_->Replace();
    if (held.ok()) held = Refill();
    if (held.ok()) break;
    if (IsEnding()) return;
    // The 1st, 2nd, 4th, 8th …: it may be that there is none for long.
    if (std::has_single_bit(++failed)) {
      Say(fmt::format("no other keeper yet, {} tried: {}", failed,
                      std::string(held.message())));
    }
    TakeEverything();
    AnswerLate(held);
    Sleep(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  if (IsEnding()) return;
  lost_ = false;
  ++keepers_replaced_;
  Say(fmt::format(
      "process {} is the keeper now, and holds {} descriptors: "
      "{:.1f} ms after the other one's death was seen",
      keeper_->pid(), stored(), absl::ToDoubleMilliseconds(Now() - since)));
  AnswerWaiting(absl::OkStatus());
}

void DescriptorStore::Say(std::string text) {
  if (!options_.say) return;
  Post([say = options_.say,
        text = std::move(text)](const absl::Status&) { say(text); },
       absl::OkStatus());
}

}  // namespace sluice::daemon
