// The shared grant pages and the thread that refills them.
//
// One limits page per node: the daemon alone writes it; sessions get a
// descriptor that was opened for reading only, of a file that other users may
// not open for writing. One use page per session, sealed against a change of
// size, or a rank could make the daemon fault. The refill thread sets heartbeat
// and limits every ~2 ms while a rank is attached, and sleeps otherwise; the
// loop never holds it up for longer than an insertion. Where the kernel allows
// it (CAP_SYS_NICE, LimitRTPRIO=, LimitNICE=) the thread goes before others: a
// heartbeat that is late lets ranks run without grants.
//
// Thread safety: Attach and Detach from one thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/grants.h"
#include "proto/base/clock.h"
#include "proto/base/grant_page.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class GrantPages {
 public:
  static constexpr absl::Duration kRefill = absl::Milliseconds(2);

  // FailedPrecondition: `kept` is no limits page of this version.
  static absl::Status CheckLimits(const UniqueFd& kept);
  // The generation of the daemon that wrote to it last; 0: it is no limits
  // page.
  static uint64_t GenerationOf(const UniqueFd& kept);
  // `clock` tells CLOCK_MONOTONIC: ranks compare the heartbeat with their own.
  // `kept`: the limits page of an earlier daemon, which ranks have mapped;
  // none: a new one. REQUIRES: CheckLimits.
  static absl::StatusOr<std::unique_ptr<GrantPages>> Start(
      std::vector<LinkSpeed> links, uint64_t generation, const Clock* clock,
      UniqueFd kept = UniqueFd());
  ~GrantPages();

  // Opens a slot; the heartbeat is fresh when it returns. The use page is the
  // session's to write.
  absl::StatusOr<UniqueFd> Attach(int slot, int link,
                                  const GrantSharer& sharer = {});
  // The slot of a rank that an earlier daemon attached, with its use page.
  absl::Status Resume(int slot, int link, const GrantSharer& sharer,
                      const UniqueFd& use);
  void Detach(int slot);
  // Slots go by these from now on. REQUIRES: none is attached; links as the
  // policy's constructor takes them, in the order that they had.
  void UseLinks(std::vector<LinkSpeed> links);
  // GrantPolicy::Promise, of a slot that has a page.
  void Promise(int slot, const CopyRates& rates);
  // GrantPolicy::Hold, of such a slot.
  void Hold(int slot, bool holds);
  // What the attached slots have used, at most a refill old.
  std::map<int, Directions> Used();
  // GrantPolicy::late.
  std::map<int, LateDirections> Late();
  // How often a heartbeat came more than kGrantStaleAfter late while ranks were
  // attached: they ran without grants though the daemon lived.
  uint64_t stale_periods() const { return stale_periods_.load(); }
  // For sending: read-only.
  std::shared_ptr<const UniqueFd> limits() const { return limits_reader_; }
  // For the descriptor store.
  const UniqueFd& kept() const { return limits_writer_; }

 private:
  struct UsePage;
  GrantPages(std::vector<LinkSpeed> links, const Clock* clock);
  void Open(int slot, std::unique_ptr<UsePage> page,
            const GrantPolicy::Grant& first)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What ranks say they need next, of the slots that say anything.
  std::map<int, GrantPolicy::Needs> ReadNeeds(absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(int slot, const GrantPolicy::Grant& grant);
  void Beat();
  void Work();

  const Clock* clock_;
  UniqueFd limits_writer_;
  std::shared_ptr<const UniqueFd> limits_reader_;
  GrantLimits* limits_ = nullptr;  // mapped

  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<GrantPolicy> policy_ ABSL_GUARDED_BY(mutex_)
      ABSL_PT_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<UsePage>> pages_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_refill_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> stale_periods_{0};
  std::thread thread_;
};

}  // namespace sluice::daemon
