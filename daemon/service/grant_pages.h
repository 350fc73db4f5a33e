// The shared grant pages and the thread that refills them.
//
// Only the daemon writes the limits page: sessions get a descriptor that was
// opened only for reading, of a file that other users may not open for writing.
// Each session has a use page of a sealed size, because a page that a rank
// could shrink would make the daemon fault. While a rank is attached, the
// refill thread sets heartbeat and limits about every 2 ms. If the kernel
// allows it (CAP_SYS_NICE, LimitRTPRIO=, LimitNICE=), the thread has priority
// over others, because after a late heartbeat ranks run without grants.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/effects.h"
#include "daemon/core/grants.h"
#include "daemon/core/node/types.h"
#include "daemon/core/session.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/takeover/handover.h"
#include "proto/base/clock.h"
#include "proto/base/grant_page.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Thread safety: any thread, but one thread attaches and detaches slots.
class GrantPages {
 public:
  static constexpr absl::Duration kRefill = absl::Milliseconds(2);

  // Returns the generation of the last writer of `kept`, or 0 if `kept` is no
  // limits page of this version.
  static uint64_t GenerationOf(const UniqueFd& kept);
  // `clock` is CLOCK_MONOTONIC, with which ranks compare the heartbeat. `kept`:
  // an earlier daemon's limits page, which ranks have mapped; empty: none.
  static absl::StatusOr<std::unique_ptr<GrantPages>> Start(
      std::vector<LinkSpeed> links, uint64_t generation, const Clock* clock,
      UniqueFd kept = UniqueFd());
  ~GrantPages();

  // Writes a heartbeat, and returns the new use page of a rank.
  absl::StatusOr<UniqueFd> Attach(int slot, int link,
                                  const GrantSharer& sharer = {});
  // Attaches a rank of an earlier daemon, with its use page.
  absl::Status Resume(int slot, int link, const GrantSharer& sharer,
                      const UniqueFd& use);
  void Detach(int slot);
  // REQUIRES: no slot is attached; the links keep their order.
  void UseLinks(std::vector<LinkSpeed> links);
  void Promise(int slot, const CopyRates& rates);
  void Hold(int slot, bool holds);
  // `Used` and `Late` return each slot's sums as of the last refill.
  std::map<int, Directions> Used();
  std::map<int, LateDirections> Late();
  // How often the heartbeat was older than kGrantStaleAfter while ranks were
  // attached, so that they copied without new grants though the daemon lived.
  uint64_t stale_periods() const { return stale_periods_.load(); }
  SharedFd limits() const { return limits_reader_; }
  const UniqueFd& kept() const { return limits_writer_; }

 private:
  struct Unmap {
    template <typename Page>
    void operator()(Page* page) const {
      munmap(page, sizeof(Page));
    }
  };
  using UsePage = std::unique_ptr<GrantUse, Unmap>;

  GrantPages(std::vector<LinkSpeed> links, const Clock* clock);
  void Open(int slot, UsePage page, const GrantPolicy::Grant& first)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<int, GrantPolicy::Needs> ReadNeeds(absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(int slot, const GrantPolicy::Grant& grant);
  void Beat();
  void Work();

  const Clock* clock_;
  UniqueFd limits_writer_;
  SharedFd limits_reader_;
  std::unique_ptr<GrantLimits, Unmap> limits_;

  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<GrantPolicy> policy_ ABSL_GUARDED_BY(mutex_)
      ABSL_PT_GUARDED_BY(mutex_);
  std::map<int, UsePage> pages_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_refill_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> stale_periods_{0};
  std::thread thread_;
};

// The slots and use pages of attached ranks, and their places in users' quotas.
//
// Thread safety: loop's thread only, except for pages().
class RankGrants {
 public:
  struct Parts {
    const NodeConfig* node;  // these must outlive this object
    Quotas* quotas;
    Handover* handover;
    const Clock* clock;
  };

  // Uses the limits page of an earlier daemon, unless it is of another version:
  // then ranks that have it mapped copy without limits.
  static absl::StatusOr<std::unique_ptr<RankGrants>> Start(
      Parts parts, std::vector<LinkSpeed> links);

  // Returns the use page; null: none could be made (logged; see UsePageOf).
  SharedFd Attach(const AttachGrants& effect, const Principal& who);
  // Attaches a rank of an earlier daemon. After an error, the rank must end.
  absl::Status Resume(const Session& rank, double weight, bool holds);
  void Detach(int slot);
  void DropUsePage(SessionId id);
  // ResourceExhausted: no page could be made.
  absl::StatusOr<SharedFd> UsePageOf(SessionId id) const;

  GrantPages& pages() { return *pages_; }

 private:
  RankGrants(Parts parts, std::unique_ptr<GrantPages> pages)
      : parts_(parts), pages_(std::move(pages)) {}
  int LinkIndexOf(DeviceIndex gpu) const;
  void Take(int slot, const Principal& who);

  const Parts parts_;
  const std::unique_ptr<GrantPages> pages_;
  std::map<int, Principal> slots_;  // the user of each attached slot
  std::map<SessionId, SharedFd> use_pages_;
  absl::Status no_page_;  // why the last use page could not be made
};

}  // namespace sluice::daemon
