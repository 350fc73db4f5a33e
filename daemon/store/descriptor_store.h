// The daemon's side of a store of descriptors that outlives the daemon:
// systemd's (FileDescriptorStoreMax=), or sluiced-keeper's.
//
// A DescriptorStore's thread sends all that waits in its queue as one batch, in
// order. If the batch includes a Flush, a barrier follows. When the store
// answers the barrier, it has everything that was sent before. Calls never
// block. After the keeper's death there is no store: Put stores nothing, and
// each Flush is done at once.
//
// A store silently drops descriptors beyond its size, so Put refuses more than
// that. If a store does not answer, each batch takes until its deadline and
// fails; the caller decides whether to go on without the store. What could not
// be sent goes first in the next batch.
//
// Thread safety: safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/store/starter.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// The sending side of sd_notify(3). A message is one datagram and may carry a
// descriptor. A barrier confirms that the receiver has read all earlier
// messages. Thread safety: one thread; Cancel may be called on any thread.
class NotifySocket {
 public:
  // `address` is a path, or '@' and an abstract name, else InvalidArgument.
  // Does not connect.
  static absl::StatusOr<std::unique_ptr<NotifySocket>> Make(
      const std::string& address);

  // Waits until `deadline` while the receiver's queue is full.
  // DeadlineExceeded: it was still full then. Unavailable: there is no
  // listener. Cancelled: Cancel was called.
  absl::Status Send(std::string_view message, absl::Time deadline, int fd = -1);
  // Returns when all earlier messages were read. DeadlineExceeded: they were
  // not read by then; they may be read later, or never. OK also if the store
  // died before: the kernel then closes its end of the pipe.
  absl::Status Barrier(absl::Time deadline);
  // Ends all present and future waits with Cancelled.
  void Cancel();

 private:
  NotifySocket(std::string address, UniqueFd cancel)
      : address_(std::move(address)), cancel_(std::move(cancel)) {}
  absl::Status ConnectNow();
  // Returns false if `fd` was not ready within `longest`.
  absl::StatusOr<bool> Wait(int fd, short events, absl::Duration longest);
  absl::Status Late(std::string_view what) const;

  const std::string address_;
  const UniqueFd cancel_;  // an eventfd
  // Connected, so that poll can report room. Replaced after an error, because
  // another process may listen by then.
  UniqueFd socket_;
};

class DescriptorStore {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Options {
    std::string notify_socket;    // empty: there is no store
    std::optional<pid_t> keeper;  // Starter::keeper
    int64_t capacity = 0;         // StoreCapacity; 0: the store keeps nothing
    // The time from a batch's first message to the store's answer.
    absl::Duration deadline = absl::Seconds(5);
    // Runs a task on another thread (Loop::Post); unset: on the store's.
    std::function<void(std::function<void()>)> post;
    // Posted once, when the keeper has died; may be unset.
    std::function<void()> on_loss;
  };
  // `stored`: what the store keeps already. InvalidArgument: malformed address.
  static absl::StatusOr<std::unique_ptr<DescriptorStore>> Start(
      Options options, const std::map<std::string, UniqueFd>& stored = {});
  // Drops messages that were not sent; pending `done`s get Cancelled.
  ~DescriptorStore();
  DescriptorStore(const DescriptorStore&) = delete;

  // Returns whether descriptors are stored. If not, Put stores nothing and
  // Flush is done at once: there is no store, the starter only listens, or the
  // keeper died.
  bool keeps() const {
    return socket_ != nullptr && options_.capacity > 0 && !lost_;
  }
  bool lost() const { return lost_; }  // the keeper has died

  // Stores a duplicate of `fd`. InvalidArgument: the name is malformed.
  // AlreadyExists: the name is in use. ResourceExhausted: the store, this
  // process's descriptors, or the queue are full.
  absl::Status Put(std::string_view name, int fd);
  // Removes a descriptor, also one that an earlier process stored.
  void Remove(std::string_view name);
  void RemoveAll(const std::set<std::string>& but = {});
  // Posts `done` with OK when the store has executed all earlier puts and
  // removals, or with the first error. After an error it is unknown which of
  // them the store has executed, until a later Flush succeeds.
  void Flush(Done done);

  // Tells the starter, after all earlier puts, that the daemon is ready.
  void Ready(std::string_view status);  // one line, shown by systemctl status
  void Watchdog();

  // Returns whether `name` was put and not removed, even if sending it failed.
  bool Has(std::string_view name) const;
  int64_t capacity() const { return options_.capacity; }

 private:
  // A message, or (with `done`) a Flush.
  struct Item {
    std::string message;
    UniqueFd fd;
    Done done;
    bool changes_store = false;  // puts or removes
  };
  static constexpr size_t kMostQueued = 1 << 14;
  static constexpr size_t kMostStatus = 256;

  explicit DescriptorStore(Options options) : options_(std::move(options)) {}
  void Tell(std::string message);
  void Push(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(Done done, absl::Status status);

  // These run on the store's thread.
  void Work();
  // Returns false if the thread must end.
  bool WaitForWork();
  // Waits at most `longest` for the keeper's death, and then calls Lose.
  // Returns whether the keeper has died.
  bool KeeperEndsWithin(absl::Duration longest);
  void Lose();
  void SendBatch(std::deque<Item> batch);
  // Returns the first error; unsent puts and removals go to `unsent_`.
  absl::Status SendAll(std::deque<Item>& batch, absl::Time deadline);

  const Options options_;
  std::unique_ptr<NotifySocket> socket_;  // null: there is no store
  UniqueFd keeper_;                       // a pidfd; empty: none is watched
  UniqueFd wake_;                         // an eventfd
  std::atomic<bool> lost_ = false;
  mutable Mutex mutex_;
  std::set<std::string, std::less<>> kept_ ABSL_GUARDED_BY(mutex_);
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Puts and removals that were not sent. Used by the thread only.
  std::deque<Item> unsent_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace sluice::daemon
