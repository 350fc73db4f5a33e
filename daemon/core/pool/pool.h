// One pool of physical memory: its extents, their principals and their states.
// Only bookkeeping: the caller executes what is decided.
//
// Extent states:
//   making       requested from the device               counts as leased
//   leased       part of a lease                         counts as leased
//   quarantined  its session ended, but its process,
//                which may still map it, lives           counts as quarantined
//   lingering    it was returned, but a process that
//                had it, or a child of that process,
//                may still map it                        counts as lingering
//   kept         idle: no process can reach it           counts as free
// Memory without an extent counts as free too, except for what is *outside*:
// held by processes outside leases. This sum always holds, to the byte:
//   total = leased + lingering + quarantined + outside + free.
//
// README.md has the rules of lingering and kept extents. If the device cannot
// tell which process reaches an extent, it stays lingering until every process
// that received a descriptor (a *holder*) has ended.
// Thread safety: one thread (core.h).
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/node/types.h"
#include "daemon/core/pool/held_outside.h"
#include "proto/base/find.h"
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
    uint64_t idle_order = 0;  // age if lingering or kept: smaller is older
    absl::Time kept_since;    // if kept
    std::vector<SessionId> holders;
    SessionId quarantined_for;
    bool operator==(const Extent&) const = default;
  };
  struct Saved {
    std::map<ExtentId, Extent> extents;
    uint64_t next_idle_order = 0;
    bool operator==(const Saved&) const = default;
  };

  // `total` and `extent` are multiples of the granularity. `outside_holders` is
  // the text of OutsideHolders, for refusals; it must outlive the pool.
  Pool(PoolId id, Bytes total, Bytes extent,
       std::string_view outside_holders = OutsideHolders("sim"));

  // The parts of a lease. `destroy` makes room for `make`.
  struct Parts {
    std::vector<ExtentId> reuse, destroy;
    std::vector<Bytes> make;
  };
  // Chooses parts for `size`: whole extents (of the size `extent`) and a tail.
  // The principal may not have `withheld` bytes of the free memory. If these
  // parts do not fit, chooses the principal's idle extents of any size; the
  // last one may make the lease larger, up to `most`. ResourceExhausted: the
  // message says what holds the memory that is not free.
  absl::StatusOr<Parts> Choose(PrincipalId principal, Bytes size, Bytes most,
                               Bytes withheld = Bytes(0)) const;
  struct Taken {
    std::vector<Slice> make;    // each ends in Made or Failed
    std::vector<Slice> slices;  // the whole lease in order, including `make`
  };
  // Leases the parts, and numbers the extents to make from `first` on.
  // REQUIRES: the pool has not changed since Choose.
  Taken Take(PrincipalId principal, const Parts& parts, ExtentId first);

  void Made(ExtentId id) { Move(id, At(id, State::kMaking), State::kLeased); }
  void Failed(ExtentId id) { Erase(id, State::kMaking); }
  void AddHolder(ExtentId id, SessionId by);  // `by` gets a descriptor
  // leased -> lingering (returns true), or -> kept if it never had a holder.
  bool Return(ExtentId id, absl::Time now);
  void Back(ExtentId id, absl::Time now);  // lingering -> kept
  void Destroy(ExtentId id) { Erase(id, State::kKept); }
  void GiveTo(ExtentId id, PrincipalId heir);  // kept, changes its principal
  void Quarantine(ExtentId id, SessionId by) {
    Extent& extent = At(id, State::kLeased);
    Move(id, extent, State::kQuarantined);
    extent.quarantined_for = by;
  }
  // Makes `to`, a session of the same process, the holder of all extents that
  // have `from` as a holder. REQUIRES: `from` has nothing in quarantine.
  void TransferHolds(SessionId from, SessionId to);
  // HolderGone: the process of `session` has ended. Its quarantined extents
  // linger from now on, because children of the process may map them.
  struct Left {
    std::vector<ExtentId> unquarantined;
    // Lingering extents that lost their last holder.
    std::vector<ExtentId> alone;
  };
  Left HolderGone(SessionId session);
  bool HasHolders(ExtentId id) const {
    return !extents_.at(id).holders.empty();
  }
  void SetOutside(Bytes said) {  // by OutsideOf, or all of a failed GPU
    outside_changes_ += outside_ != said;
    outside_ = said;
  }
  // Grows with each change of the pool.
  uint64_t changes() const { return extents_.changes() + outside_changes_; }
  Bytes SizeOf(ExtentId id) const { return extents_.at(id).size; }
  Bytes SizeOf(const Parts& parts) const;  // of a lease with these parts
  bool IsLingering(ExtentId id) const {
    return extents_.at(id).state == State::kLingering;
  }

  Bytes total() const { return total_; }
  Bytes leased() const { return making() + Sum(State::kLeased); }
  // The part of `leased` that the device is still making.
  Bytes making() const { return Sum(State::kMaking); }
  Bytes quarantined() const { return Sum(State::kQuarantined); }
  Bytes lingering() const { return Sum(State::kLingering); }
  // The part of `free` that exists as idle extents.
  Bytes kept() const { return Sum(State::kKept); }
  // SetOutside's figure, but at most what extents leave of the pool, because
  // that figure is of another moment.
  Bytes outside() const { return std::min(outside_, total_ - made()); }
  Bytes free() const { return total_ - charged() - outside(); }
  // The size of all extents, including those that are being made.
  Bytes made() const { return charged() + kept(); }
  // Returns how much `principal` can certainly get in one lease: free memory
  // that is not withheld, and its own lingering whole extents.
  Bytes UsableBy(PrincipalId principal, Bytes withheld = Bytes(0)) const {
    const Idle* own = FindOrNull(AccountOf(principal).idle, extent_);
    return RoomBeside(withheld) + (own != nullptr ? own->lingering : Bytes(0));
  }
  // Returns the most that `principal` can get in pieces of any size: free
  // memory that is not withheld, and its own lingering memory.
  Bytes MostFor(PrincipalId principal, Bytes withheld) const {
    return RoomBeside(withheld) + AccountOf(principal).lingering;
  }
  size_t ExtentsOf(Bytes size) const {
    return static_cast<size_t>((size + extent_ - Bytes(1)) / extent_);
  }
  // Returns the memory of `principal` that is leased, quarantined or lingers.
  Bytes ChargedTo(PrincipalId principal) const {
    return AccountOf(principal).charged;
  }
  size_t extents() const { return extents_.size(); }
  // Returns how many extents, in any state, `principal` has.
  size_t OwnedBy(PrincipalId principal) const {
    return AccountOf(principal).extents;
  }
  bool HasKeptOf(PrincipalId principal) const {
    return !AccountOf(principal).kept.empty();
  }
  PrincipalId OwnerOf(ExtentId id) const { return extents_.at(id).principal; }
  // Returns at most `count` kept extents of the principal `of` (nullopt: of
  // all), oldest first, without `spared`.
  std::vector<ExtentId> OldestKept(size_t count,
                                   const std::set<ExtentId>& spared,
                                   std::optional<PrincipalId> of) const;
  // Returns at most `count` extents that have been kept since `then` or longer.
  std::vector<ExtentId> KeptSince(absl::Time then, size_t count) const;
  // Returns when the oldest kept extent became kept; InfiniteFuture if none is.
  absl::Time OldestSince() const {
    return kept_by_age_.empty()
               ? absl::InfiniteFuture()
               : extents_.at(kept_by_age_.begin()->second).kept_since;
  }

  Saved Save() const { return {extents_.rows(), next_idle_order_}; }
  void Load(const Saved& saved);
  Table<ExtentId, Extent>& rows() { return extents_; }  // for saving
  uint64_t next_idle_order() const { return next_idle_order_; }

  void CheckInvariants() const;

 private:
  // Extents by age, oldest first.
  using ByAge = std::map<uint64_t, ExtentId>;
  // Lingering and kept extents of one principal and size.
  struct Idle {
    ByAge by_age;
    Bytes lingering;
    bool operator==(const Idle&) const = default;
  };
  // What a principal has. Idle extents are indexed, so that a refusal costs the
  // same with 10,000 of them as with none.
  struct Account {
    size_t extents = 0;
    Bytes charged, lingering;  // `charged` includes `lingering`
    ByAge kept;
    std::map<Bytes, Idle> idle;  // by size; none is empty
    bool operator==(const Account&) const = default;
  };
  // For each size: its idle extents, and how many of them are taken.
  using Picked = std::vector<std::pair<const ByAge*, int64_t>>;

  // REQUIRES: the extent is in that state.
  Extent& At(ExtentId id, State state);
  Bytes Sum(State state) const { return sums_[static_cast<size_t>(state)]; }
  Bytes charged() const { return leased() + quarantined() + lingering(); }
  Bytes unmade() const { return free() - kept(); }
  // Returns an empty account for a principal without extents.
  const Account& AccountOf(PrincipalId principal) const;
  // Adds (`sign` 1) or removes (-1) an extent in its state's sums and lists.
  void List(ExtentId id, const Extent& extent, int sign);
  // As List, for an extent that its principal gets (1) or loses (-1).
  void Own(ExtentId id, const Extent& extent, int sign);
  void Move(ExtentId id, Extent& extent, State to);
  void Erase(ExtentId id, State in) {
    Own(id, At(id, in), -1);
    extents_.erase(id);
  }
  absl::Status Refusal(Bytes asked, Bytes withheld) const;
  // `Regular` chooses whole extents and a tail; `Patched` chooses idle extents
  // of any size. Both return nullopt if there is no room, without looking at
  // extents if sums already show it.
  std::optional<Parts> Regular(const Account& own, Bytes size,
                               Bytes room) const;
  std::optional<Parts> Patched(const Account& own, Bytes size, Bytes most,
                               Bytes room) const;
  Bytes RoomBeside(Bytes withheld) const {
    return std::max(free() - withheld, Bytes(0));
  }
  // Takes `picked` extents, and makes `left` bytes or else adds `spare`.
  std::optional<Parts> Assemble(const Picked& picked, Bytes left, Bytes room,
                                std::optional<ExtentId> spare) const;
  // Returns how much of the free memory these parts take.
  Bytes TakenFromFree(const Parts& parts) const {
    Bytes taken = SizeOf(parts);
    for (ExtentId id : parts.reuse) {
      if (IsLingering(id)) taken -= SizeOf(id);
    }
    return taken;
  }
  // Adds extents to make for `bytes`, and kept ones to destroy for them.
  // Returns false if there is no room.
  bool MakeRoom(Bytes bytes, Parts& parts) const;

  const PoolId id_;
  const Bytes total_;
  const Bytes extent_;
  const std::string_view outside_holders_;
  Table<ExtentId, Extent> extents_;
  std::array<Bytes, 5> sums_;                // sizes of extents, by state
  std::map<PrincipalId, Account> accounts_;  // of principals with extents
  ByAge kept_by_age_;                        // of all principals
  std::map<SessionId, std::set<ExtentId>> held_;
  uint64_t next_idle_order_ = 0;
  Bytes outside_;
  uint64_t outside_changes_ = 0;
};

}  // namespace sluice::daemon
