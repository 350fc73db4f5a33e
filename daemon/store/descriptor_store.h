// The daemon's side of a store of descriptors that outlives it: systemd's
// (FileDescriptorStoreMax=), or sluiced-keeper's.
//
// How it works. Puts, removals and messages wait in a queue. A thread of its
// own takes all that is there as one batch and sends it in order. If a Flush
// waits for the batch, one barrier follows it: the store has everything when it
// answers. Calls never block.
//
// A keeper that died takes with it what it held. From then on there is no
// store: nothing is put, and each Flush is done at once.
//
// What it does not do. A store drops silently what is beyond its size, so the
// size is known here and more is refused. A store that does not answer costs
// each batch its deadline and fails it: the caller decides whether to go on
// without the store. What could not be sent goes first in the next batch.
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
#include "daemon/store/notify_socket.h"
#include "daemon/store/starter.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class DescriptorStore {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Options {
    std::string notify_socket;    // empty: there is no store
    std::optional<pid_t> keeper;  // Starter::keeper
    int64_t capacity = 0;         // StoreCapacity; 0: it keeps nothing
    // Per batch, from its first message to the answer.
    absl::Duration deadline = absl::Seconds(5);
    // Runs a task elsewhere (Loop::Post); absent: on this object's thread.
    std::function<void(std::function<void()>)> post;
    // Posted once, when the keeper has died.
    std::function<void()> on_loss;
  };
  // `stored`: what the store holds already (Starter::stored). InvalidArgument:
  // the address is malformed.
  static absl::StatusOr<std::unique_ptr<DescriptorStore>> Start(
      Options options, const std::map<std::string, UniqueFd>& stored = {});
  // Ends all waits. What was not sent is dropped, and its `done` gets
  // Cancelled.
  ~DescriptorStore();
  DescriptorStore(const DescriptorStore&) = delete;

  // False: nothing is put, and Flush is done at once. The starter may listen
  // and keep nothing, and a keeper may have died.
  bool keeps() const {
    return socket_ != nullptr && options_.capacity > 0 && !lost_;
  }
  // Whether the keeper has died.
  bool lost() const { return lost_; }

  // Stores a duplicate of `fd` as `name`. InvalidArgument: not a name
  // (IsDescriptorName). AlreadyExists: it is stored. ResourceExhausted: the
  // store, this process's descriptors, or the queue are full.
  absl::Status Put(std::string_view name, int fd);
  // Also removes what an earlier process left. Does nothing if it is not there.
  void Remove(std::string_view name);
  // Removes all that is stored except `but`.
  void RemoveAll(const std::set<std::string>& but = {});
  // Posts `done` when the store has taken all that was put and removed before,
  // or with the first fault on the way: then it is unknown which of it the
  // store has, until a later Flush is done without a fault.
  void Flush(Done done);

  // To the service manager, behind what was put before.
  void Ready(std::string_view status);  // one line, shown by systemctl status
  void Watchdog();

  // Put and not removed, whatever became of it.
  bool Has(std::string_view name) const;
  int64_t stored() const;
  int64_t capacity() const { return options_.capacity; }

 private:
  // One message of a batch, or the wait for its end.
  struct Item {
    std::string message;
    UniqueFd fd;
    Done done;
    bool changes_store = false;  // puts or removes
  };
  static constexpr size_t kMostQueued = 1 << 14;
  static constexpr size_t kMostStatus = 256;

  explicit DescriptorStore(Options options) : options_(std::move(options)) {}
  absl::Status Open(const std::map<std::string, UniqueFd>& stored);
  absl::Status WatchKeeper(pid_t pid);
  void Tell(std::string message);
  void Push(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(Done done, absl::Status status);

  // On the thread.
  void Work();
  // Waits for items. False: the thread is to end.
  bool WaitForWork();
  // Also notes the keeper's death.
  bool KeeperEndsWithin(absl::Duration longest);
  void Lose();
  void SendBatch(std::deque<Item> batch);
  // Returns the first fault; unsent puts and removals go to `unsent_`.
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
  std::deque<Item> unsent_;  // the thread's own: of earlier batches
  std::thread thread_;       // last: it uses the rest
};

}  // namespace sluice::daemon
