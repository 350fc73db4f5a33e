// What an earlier daemon left, and what this one leaves to the next.
//
// A descriptor store (daemon/store) keeps everything that others hold: each
// extent, each rank's socket, pidfd and use page, the limits page, the clocks
// of simulated links, and the state file with the core's state (daemon/state).
// Nothing is sent to clients before it is kept and saved. Without a store, or
// after it was lost, this class does nothing.
//
// If the store fails, or the state is too large for its file, the state is
// voided before anything else is sent, so the next daemon would start without
// it. This daemon goes on serving, and saves again when the store has
// everything, or when the state fits; the log has a line for each change.
//
// Thread safety: loop's thread; Keep, CannotKeep and WhenKept on any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/service/threads/closer.h"
#include "daemon/service/threads/loop.h"
#include "daemon/state/core_rows.h"
#include "daemon/state/state_file.h"
#include "daemon/store/descriptor_store.h"
#include "daemon/store/starter.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Handover {
 public:
  // `loop` and `closer` must outlive the result.
  static absl::StatusOr<std::unique_ptr<Handover>> Start(
      Starter starter, Loop* loop, Closer* closer, StateFile::Sizes sizes = {});

  // Opens the store of `starter`. If the store is lost later, logs that.
  static absl::StatusOr<std::unique_ptr<DescriptorStore>> OpenStore(
      const Starter& starter, Loop* loop);
  bool keeps() const { return store_->keeps(); }
  // Returns whether the store has everything, including the state, so that the
  // next daemon could take over now.
  bool saves() const { return keeps() && !try_again_at_; }

  // --- from the earlier daemon ----------------------------------------------
  // Returns the earlier daemon's state; parts that are not saved are taken from
  // `fresh`. Nullopt: it left no state, or a void one. Errors as ReadSaved.
  absl::StatusOr<std::optional<CoreState>> ReadState(const Core& fresh);
  bool Left(const std::string& name) const { return left_.contains(name); }
  bool left_anything() const { return !left_.empty(); }
  // The greatest session id in the names of what was left. New sessions have
  // greater ids, because names are never used again.
  SessionId last_session_left() const { return last_session_left_; }
  // Returns what was left under `name`, or none. The store still keeps it.
  UniqueFd Take(const std::string& name);
  void DropRest();

  // --- for the next daemon --------------------------------------------------
  void Begin(Core& core, absl::Time now);
  // Saves the core's changes, before anything that depends on them is sent.
  void Save(Core& core, absl::Time now);
  // Returns when Save must be called even without changes.
  absl::Time deadline() const {
    return begun_ ? try_again_at_.value_or(absl::InfiniteFuture())
                  : absl::InfiniteFuture();
  }
  // Keeps a duplicate of `fd` under a name that is not in use.
  void Keep(const std::string& name, int fd);
  // Reports that `name` cannot be kept. Until it is dropped, or `fd` is kept in
  // a later try, the next daemon would start without state.
  void CannotKeep(const std::string& name, const absl::Status& why,
                  UniqueFd fd = UniqueFd());
  // Returns whether `name` is kept, also if an earlier daemon stored it.
  bool Kept(const std::string& name) const { return store_->Has(name); }
  void Drop(const std::string& name);
  // Ends a client's connection and drops its socket from the store. Closing the
  // last descriptor of the socket also closes the descriptors in the client's
  // unread packets, which takes as long as the client likes. So the closer
  // closes `socket`, a duplicate, after the store has closed its own.
  void DropSocket(const std::string& name, UniqueFd socket);
  // Runs `then` on the loop when the store has everything given to it so far.
  // Posts it at once if there is no store, or while the store fails.
  void WhenKept(std::function<void()> then);
  // Drops what is kept, except listening sockets if `listeners`. Calls `then`
  // when the store has done so, or at once if it keeps nothing or fails.
  void LeaveNothing(std::function<void()> then, bool listeners = false);

  DescriptorStore& store() { return *store_; }

  static std::string NameOf(ExtentId id) { return NameFor(kExtent, id); }
  static std::string SocketOf(SessionId id) { return NameFor(kSocket, id); }
  static std::string ProcessOf(SessionId id) { return NameFor(kProcess, id); }
  static std::string UsePageOf(SessionId id) { return NameFor(kUsePage, id); }
  // Returns how many descriptors the starter's store can keep; 0: it has none.
  static int64_t CapacityOf(const Starter& starter);
  // The most descriptors kept for the daemon itself and for each rank.
  static constexpr int64_t kOwn = 8, kOfRank = 3;
  static constexpr const char* kState = "state";
  static constexpr const char* kDeaths = "deaths";  // DeathRecord
  static constexpr const char* kListener = "listener";
  static constexpr const char* kHttp = "http";  // TCP listener of metrics
  static constexpr const char* kLimits = "limits";
  static constexpr const char* kClocks = "clocks";

 private:
  // The interval of saving a state that did not fit: a try costs milliseconds.
  static constexpr absl::Duration kTryAgain = absl::Seconds(1);
  // The interval of storing again: a try may keep the store busy for 5 s.
  static constexpr absl::Duration kStoreAgain = absl::Seconds(10);

  static constexpr char kSocket = 's', kProcess = 'p', kUsePage = 'u',
                        kExtent = 'e';
  static std::string NameFor(char kind, auto id) {
    return kind + std::to_string(id.value());
  }

  Handover(Loop* loop, Closer* closer, StateFile::Sizes sizes)
      : loop_(*loop), closer_(*closer), sizes_(sizes) {}
  absl::Status MakeState();
  void SaveAll(Core& core, absl::Time now);
  // Stops saving for good, since the store is lost.
  void Stop(Core& core);
  // Stops saving until StoreAgain succeeds.
  void Fail(const absl::Status& why);
  void StoreAgain(Core& core, absl::Time now);
  void DropState();

  Loop& loop_;
  Closer& closer_;
  const StateFile::Sizes sizes_;
  std::unique_ptr<DescriptorStore> store_;
  std::map<std::string, UniqueFd> left_;
  SessionId last_session_left_;
  UniqueFd state_fd_;
  std::unique_ptr<StateFile> state_;
  bool begun_ = false;  // the core tracks changes
  CoreRows rows_;
  // The time of the next try; set while the state is too large, or unstored_.
  std::optional<absl::Time> try_again_at_;
  std::atomic<bool> unstored_ = false;  // the store lacks something
  // What the store refused; descriptors that could not be duplicated are empty.
  std::map<std::string, UniqueFd> refused_;
  bool asking_ = false;  // a Flush is pending after everything was put again
  bool has_everything_ = false;  // that Flush succeeded
};

// Opens the state in `fd`. Null if it is void (StateFile::Void): the daemon
// then starts as if nothing was saved.
absl::StatusOr<std::unique_ptr<StateFile>> OpenSaved(int fd);

// Reads the core. Errors as ReadCore, and: Unimplemented if a session uses a
// protocol that this daemon does not know; FailedPrecondition if more memory
// was made than a pool has here, or a GPU that jobs use has another UUID here.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh);

// Returns OK if a daemon of this node can take over what the starter kept, or
// if nothing was saved. Errors as ReadSaved and CheckLeft.
absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node);

// FailedPrecondition: an extent that the state needs was not kept.
absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept);

}  // namespace sluice::daemon
