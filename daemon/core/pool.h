// One pool of physical memory: which extents exist, whose they are, in which
// state. Only bookkeeping: the effects a decision needs come back as lists.
//
// Extent states:
//   making       asked of the device, not there yet      counts as leased
//   leased       part of a lease                         counts as leased
//   quarantined  its lease ended by the end of a session
//                whose process may still map it          counts as quarantined
//   kept         idle, for the same principal            counts as free
// What no extent covers counts as free too. To the byte, always:
//   total = leased + free + quarantined.
//
// A handle that left the daemon never goes to another principal. A kept
// extent is given on as it is to its own principal; for anyone else it is
// destroyed and made anew, and only when no living process ever received its
// descriptor (a *holder*): until then the memory is not provably back.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/types.h"

namespace sluice::daemon {

struct Slice {
  ExtentId id;
  Bytes size;
  bool operator==(const Slice&) const = default;
};

class Pool {
 public:
  enum class State { kMaking, kLeased, kQuarantined, kKept };
  struct Extent {
    Bytes size;
    State state = State::kMaking;
    PrincipalId principal;
    uint64_t kept_order = 0;  // of kept ones: smaller is older
    std::vector<SessionId> holders;
    SessionId quarantined_for;
    bool operator==(const Extent&) const = default;
  };
  // What it knows; all else follows.
  struct Saved {
    std::map<ExtentId, Extent> extents;
    uint64_t next_kept_order = 0;
    bool operator==(const Saved&) const = default;
  };

  // `total` and `extent` are multiples of the granularity.
  Pool(PoolId id, Bytes total, Bytes extent);

  struct Taken {
    std::vector<ExtentId> destroy;  // first
    std::vector<Slice> make;        // then; each ends in Made or Failed
    std::vector<Slice> slices;      // of the lease, in order; `make` included
  };
  // Extents that make up `size`: all of extent_bytes but the last. Where there
  // is no room for these, of idle ones of any size that the principal had, the
  // last of which may make it larger, up to `most`. ResourceExhausted leaves
  // everything as it was; its message says asked, free, total, and what holds
  // the rest.
  // Extents to make are numbered from `first` on.
  absl::StatusOr<Taken> Take(PrincipalId principal, Bytes size, Bytes most,
                             ExtentId first);

  void Made(ExtentId id);                      // making -> leased
  void Failed(ExtentId id);                    // making -> not there
  void AddHolder(ExtentId id, SessionId by);   // its descriptor was sent
  void Return(ExtentId id);                    // leased -> kept
  void Quarantine(ExtentId id, SessionId by);  // leased -> quarantined
  // What `from` received counts as received by `to`, a session of the same
  // process. `from` has nothing in quarantine.
  void TransferHolds(SessionId from, SessionId to);
  // The process of that session is gone: what it had in quarantine is kept.
  // Returns the bytes that left quarantine.
  Bytes HolderGone(SessionId session);

  PoolId id() const { return id_; }
  Bytes total() const { return total_; }
  Bytes leased() const { return leased_; }
  Bytes quarantined() const { return quarantined_; }
  Bytes free() const { return total_ - leased_ - quarantined_; }
  // The part of `free` that exists as idle extents.
  Bytes kept() const { return kept_; }
  // The part of `free` that `principal` can surely get in one lease: without
  // idle extents of others, or of another size than extent_bytes, that a
  // living process may map.
  Bytes UsableBy(PrincipalId principal) const;
  size_t extents() const { return extents_.size(); }
  // Whether any extent, in whatever state, is of `principal`.
  bool Has(PrincipalId principal) const { return owned_.contains(principal); }

  Saved Save() const { return {extents_, next_kept_order_}; }
  void Load(const Saved& saved);

  void CheckInvariants() const;

 private:
  using KeptKey = std::pair<PrincipalId, Bytes>;
  // By age: older ones first.
  using ByAge = std::map<uint64_t, ExtentId>;
  // Idle extents of one principal and size; `held` is what living processes
  // may still map of them.
  struct Kept {
    ByAge by_age;
    Bytes held;
  };

  Extent& at(ExtentId id);
  Bytes unmade() const { return total_ - leased_ - quarantined_ - kept_; }
  void Keep(ExtentId id, Extent& extent);
  // Counts and lists an extent as what it is.
  void List(ExtentId id, const Extent& extent);
  void ListKept(ExtentId id, const Extent& extent);
  void Unkeep(ExtentId id, Extent& extent);
  void Erase(ExtentId id);
  // Removes a holder of any extent.
  void DropHolder(ExtentId id, Extent& extent, SessionId holder);
  // Oldest idle extents without holders, not in `spared`, until `need`.
  std::vector<ExtentId> Reclaimable(Bytes need,
                                    const std::set<ExtentId>& spared) const;
  absl::Status Refusal(Bytes asked) const;
  // What a lease is made of: idle extents, extents to destroy first, and the
  // sizes of those to make.
  struct Parts {
    std::vector<ExtentId> reuse, destroy;
    std::vector<Bytes> make;
  };
  // In whole extents and a tail; of whatever is idle. Nullopt: no room.
  // Both say no before they look at single extents wherever the sums do.
  std::optional<Parts> Regular(PrincipalId principal, Bytes size) const;
  std::optional<Parts> Patched(PrincipalId principal, Bytes size,
                               Bytes most) const;
  // What can be made, with all that may be destroyed for it.
  Bytes makeable() const { return unmade() + kept_ - kept_held_; }
  // Adds what makes room for `bytes` in whole extents and a tail.
  bool MakeRoom(Bytes bytes, Parts& parts) const;

  const PoolId id_;
  const Bytes total_;
  const Bytes extent_;
  std::map<ExtentId, Extent> extents_;
  std::map<PrincipalId, size_t> owned_;  // how many extents; only above 0
  // What a request looks at must not grow with what is kept: a refusal costs
  // as much beside 10,000 idle extents as beside none.
  std::map<KeptKey, Kept> kept_by_size_;
  ByAge reclaimable_;  // kept, and no living process may map it
  std::map<SessionId, std::set<ExtentId>> held_;
  uint64_t next_kept_order_ = 0;
  Bytes leased_, quarantined_, kept_;
  Bytes kept_held_;  // the part of `kept_` that is not reclaimable
};

}  // namespace sluice::daemon
