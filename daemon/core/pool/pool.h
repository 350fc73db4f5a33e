// One pool of physical memory: its extents, their principals and their states.
// Only bookkeeping: the effects a decision needs come back as lists.
//
// Extent states:
//   making       asked of the device, not there yet      counts as leased
//   leased       part of a lease                         counts as leased
//   quarantined  its session ended, and the process of
//                that may still map it                   counts as quarantined
//   lingering    it was returned, but a process may
//                still map it: the one that returned it,
//                or a child of one that is gone          counts as lingering
//   kept         idle: no process can reach it           counts as free
// What no extent covers counts as free too, but for what is *outside*: held by
// processes that lease nothing here, as the device says. To the byte, always:
//   total = leased + lingering + quarantined + outside + free.
//
// A handle that left the daemon never goes to another principal. A lingering
// or kept extent is given on as it is to its own principal; for another one a
// kept extent is destroyed and made anew. Lingering ones are not free: the
// device says when no process reaches them any more (`Back`), or, where it does
// not know, the end of every process that received a descriptor (a *holder*).
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/node/types.h"
#include "daemon/core/pool/held_outside.h"
#include "proto/base/table.h"

namespace sluice::daemon {

struct Slice {
  ExtentId id;
  Bytes size;
  bool operator==(const Slice&) const = default;
};

class Pool {
 public:
  enum class State { kMaking, kLeased, kQuarantined, kLingering, kKept };
  struct Extent {
    Bytes size;
    State state = State::kMaking;
    PrincipalId principal;
    uint64_t idle_order = 0;  // of lingering and kept ones: smaller is older
    absl::Time kept_since;    // of kept ones
    std::vector<SessionId> holders;
    SessionId quarantined_for;
    bool operator==(const Extent&) const = default;
  };
  // What it knows; all else follows.
  struct Saved {
    std::map<ExtentId, Extent> extents;
    uint64_t next_idle_order = 0;
    bool operator==(const Saved&) const = default;
  };

  // `total` and `extent` are multiples of the granularity. `outside_holders`:
  // OutsideHolders, for refusals; it outlives the pool.
  Pool(PoolId id, Bytes total, Bytes extent,
       std::string_view outside_holders = OutsideHolders("sim"));

  // What a lease is made of: idle extents, extents to destroy first, and the
  // sizes of those to make.
  struct Parts {
    std::vector<ExtentId> reuse, destroy;
    std::vector<Bytes> make;
  };
  // Of `size`: all of extent_bytes but the last, and not of the part of `free`
  // that is `withheld` from this principal. Where there is no room for
  // these, of idle ones of any size that the principal had, the last of which
  // may make it larger, up to `most`. ResourceExhausted: its message says
  // asked, free, total, and what holds the rest.
  absl::StatusOr<Parts> Choose(PrincipalId principal, Bytes size, Bytes most,
                               Bytes withheld = Bytes(0)) const;
  struct Taken {
    std::vector<Slice> make;    // each ends in Made or Failed
    std::vector<Slice> slices;  // of the lease, in order; `make` included
  };
  // What was chosen, before anything else happens to the pool. Extents to make
  // are numbered from `first` on.
  Taken Take(PrincipalId principal, const Parts& parts, ExtentId first);

  void Made(ExtentId id);                     // making -> leased
  void Failed(ExtentId id);                   // making -> not there
  void AddHolder(ExtentId id, SessionId by);  // its descriptor was sent
  // leased -> lingering (true), or kept where its descriptor never left.
  bool Return(ExtentId id, absl::Time now);
  void Back(ExtentId id, absl::Time now);      // lingering -> kept
  void Destroy(ExtentId id);                   // kept -> not there
  void GiveTo(ExtentId id, PrincipalId heir);  // kept, and of another from now
  void Quarantine(ExtentId id, SessionId by);  // leased -> quarantined
  // What `from` received counts as received by `to`, a session of the same
  // process. `from` has nothing in quarantine.
  void TransferHolds(SessionId from, SessionId to);
  // The process of that session is gone. What it had in quarantine lingers now:
  // its children may map it.
  struct Left {
    std::vector<ExtentId> unquarantined;
    std::vector<ExtentId> alone;  // lingered already, and has no holder now
  };
  Left HolderGone(SessionId session);
  bool HasHolders(ExtentId id) const {
    return !extents_.at(id).holders.empty();
  }
  // What is held outside (OutsideOf).
  void SetOutside(Bytes said) {
    outside_changes_ += outside_ != said;
    outside_ = said;
  }
  // Grows with each change of what the pool has.
  uint64_t changes() const { return extents_.changes() + outside_changes_; }
  Bytes SizeOf(ExtentId id) const { return extents_.at(id).size; }
  // The size of a lease of these.
  Bytes SizeOf(const Parts& parts) const;
  bool IsLingering(ExtentId id) const {
    return extents_.at(id).state == State::kLingering;
  }

  Bytes total() const { return total_; }
  Bytes leased() const { return leased_; }
  // The part of it that the device is still to make.
  Bytes making() const { return making_; }
  Bytes quarantined() const { return quarantined_; }
  Bytes lingering() const { return lingering_; }
  // Beside what extents cover: what the device said is of another moment.
  Bytes outside() const {
    return std::min(outside_, total_ - charged() - kept_);
  }
  Bytes free() const { return total_ - charged() - outside(); }
  // The part of `free` that exists as idle extents.
  Bytes kept() const { return kept_; }
  // What exists as extents, or is asked of the device.
  Bytes made() const { return charged() + kept_; }
  // What `principal` can surely get in one lease: what is free and not
  // withheld, and what lingers of its own in extents of extent_bytes.
  Bytes UsableBy(PrincipalId principal, Bytes withheld = Bytes(0)) const;
  // More than this `principal` cannot get, whatever its size is cut into: what
  // is free and not withheld, and what lingers of its own.
  Bytes MostFor(PrincipalId principal, Bytes withheld) const;
  size_t ExtentsOf(Bytes size) const {
    return static_cast<size_t>((size + extent_ - Bytes(1)) / extent_);
  }
  // What of `principal` is leased, in quarantine or lingers.
  Bytes ChargedTo(PrincipalId principal) const;
  size_t extents() const { return extents_.size(); }
  // How many extents, in whatever state, are of `principal`.
  size_t OwnedBy(PrincipalId principal) const;
  size_t KeptOf(PrincipalId principal) const;
  PrincipalId OwnerOf(ExtentId id) const { return extents_.at(id).principal; }
  // At most `count` kept ones that are not `spared`, of one principal or of
  // all, the oldest first.
  std::vector<ExtentId> OldestKept(size_t count,
                                   const std::set<ExtentId>& spared,
                                   std::optional<PrincipalId> of) const;
  // At most `count` that are kept since `then` or longer.
  std::vector<ExtentId> KeptSince(absl::Time then, size_t count) const;
  // Since when the oldest one is kept; InfiniteFuture: there is none.
  absl::Time OldestSince() const;

  Saved Save() const { return {extents_.rows(), next_idle_order_}; }
  void Load(const Saved& saved);
  // Its extents row by row (state.h).
  Table<ExtentId, Extent>& rows() { return extents_; }
  uint64_t next_idle_order() const { return next_idle_order_; }

  void CheckInvariants() const;

 private:
  using IdleKey = std::pair<PrincipalId, Bytes>;
  // By age: older ones first.
  using ByAge = std::map<uint64_t, ExtentId>;
  // Lingering and kept extents of one principal and size.
  struct Idle {
    ByAge by_age;
    Bytes lingering;
  };

  Extent& at(ExtentId id);
  Bytes charged() const { return leased_ + quarantined_ + lingering_; }
  Bytes unmade() const { return free() - kept_; }
  // To lingering, or to kept.
  void Rest(ExtentId id, Extent& extent, State state);
  // Counts and lists an extent as what it is.
  void List(ExtentId id, const Extent& extent);
  void ListIdle(ExtentId id, const Extent& extent);
  void UnlistIdle(ExtentId id, const Extent& extent);
  void Erase(ExtentId id);
  // Oldest kept extents, not in `spared`, until `need`.
  std::vector<ExtentId> Reclaimable(Bytes need,
                                    const std::set<ExtentId>& spared) const;
  absl::Status Refusal(Bytes asked, Bytes withheld) const;
  // In whole extents and a tail; of whatever is idle. Nullopt: no room.
  // Both say no before they look at single extents wherever the sums do.
  std::optional<Parts> Regular(PrincipalId principal, Bytes size,
                               Bytes room) const;
  std::optional<Parts> Patched(PrincipalId principal, Bytes size, Bytes most,
                               Bytes room) const;
  // What is not withheld.
  Bytes RoomBeside(Bytes withheld) const {
    return std::max(free() - withheld, Bytes(0));
  }
  // `n` of one size, newest first: their pages are warm. With `scarce`, those
  // that linger before them: only kept ones are taken from what is free.
  void Reuse(const ByAge& ids, int64_t n, bool scarce, Parts& parts) const;
  // What these take from what is free.
  Bytes TakenFromFree(const Parts& parts) const;
  void Charge(PrincipalId principal, Bytes size, Bytes lingering = Bytes(0));
  // Adds what makes room for `bytes` in whole extents and a tail.
  bool MakeRoom(Bytes bytes, Parts& parts) const;
  // Steps of CheckInvariants.
  struct Counted;
  void CheckExtent(ExtentId id, const Extent& extent, Counted& counted) const;
  void CheckLists(const Counted& counted) const;

  const PoolId id_;
  const Bytes total_;
  const Bytes extent_;
  const std::string_view outside_holders_;
  Table<ExtentId, Extent> extents_;
  std::map<PrincipalId, size_t> owned_;  // how many extents; only above 0
  // What each principal that holds any has, and what of that lingers.
  struct Charged {
    Bytes all, lingering;
    bool operator==(const Charged&) const = default;
  };
  std::map<PrincipalId, Charged> charged_;
  // What a request looks at must not grow with what is kept: a refusal costs
  // as much beside 10,000 idle extents as beside none.
  std::map<IdleKey, Idle> idle_by_size_;
  ByAge kept_by_age_;
  std::map<PrincipalId, ByAge> kept_of_;  // none is empty
  std::map<SessionId, std::set<ExtentId>> held_;
  uint64_t next_idle_order_ = 0;
  Bytes leased_, making_, quarantined_, lingering_, kept_;
  Bytes outside_;
  uint64_t outside_changes_ = 0;
};

}  // namespace sluice::daemon
