// The daemon's side of a store of descriptors that outlives it: systemd's
// (FileDescriptorStoreMax=), or sluiced-keeper's.
//
// How it works. What is put, removed and told waits in a queue. A thread of its
// own takes all that is there as one batch, sends it in order, and, where
// somebody waits for it, follows it with one barrier: the store has everything
// when it answers. Calls never block.
//
// What it does not do. A store drops silently what is beyond its size, so the
// size is known here and more is refused. A store that does not answer costs
// each batch its deadline and fails with it, no more: whether to go on without
// it is for the caller.
//
// Thread safety: safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/store/notify_socket.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class DescriptorStore {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Options {
    std::string notify_socket;  // empty: nobody keeps anything
    int64_t capacity = 0;       // StoreCapacity; 0: it keeps nothing
    // What the store holds already: Starter::stored.
    std::vector<std::string> stored;
    // Per batch, from its first message to the answer.
    absl::Duration deadline = absl::Seconds(5);
    // Runs a task elsewhere (Loop::Post); absent: on this object's thread.
    std::function<void(std::function<void()>)> post;
  };
  // InvalidArgument: the address is none.
  static absl::StatusOr<std::unique_ptr<DescriptorStore>> Start(
      Options options);
  // Ends what it waits for. What has not been sent is not, and its `done` gets
  // Cancelled.
  ~DescriptorStore();
  DescriptorStore(const DescriptorStore&) = delete;

  // False: nothing is put, and Flush is done at once. Whoever started the
  // process may listen and keep nothing.
  bool keeps() const { return socket_ != nullptr && options_.capacity > 0; }

  // The store will keep a duplicate of `fd` as `name`. InvalidArgument: not a
  // name (descriptor_name.h). AlreadyExists: it is stored. ResourceExhausted:
  // the store, this process's descriptors, or the queue are full.
  absl::Status Put(std::string_view name, int fd);
  // Also one that an earlier process left. Not there: nothing.
  void Remove(std::string_view name);
  // All that is stored: nothing is left to another process.
  void RemoveAll();
  // `done` is posted when the store has taken all that was put and removed
  // before, or with the first fault that it met on the way: then nobody knows
  // which of it the store has.
  void Flush(Done done);

  // To the service manager, behind what was put before.
  void Ready(std::string_view status);
  void Status(std::string_view status);  // one line, shown by systemctl status
  void Watchdog();
  void Stopping();
  void ExtendTimeout(absl::Duration by);

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
  };
  static constexpr size_t kMostQueued = 1 << 14;
  static constexpr size_t kMostStatus = 256;

  DescriptorStore(Options options, std::unique_ptr<NotifySocket> socket);
  void Tell(std::string message);
  void Push(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();
  void SendBatch(std::deque<Item> batch);
  void Post(Done done, absl::Status status);

  const Options options_;
  const std::unique_ptr<NotifySocket> socket_;  // null: nobody listens
  mutable Mutex mutex_;
  CondVar changed_;
  std::set<std::string, std::less<>> names_ ABSL_GUARDED_BY(mutex_);
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace sluice::daemon
