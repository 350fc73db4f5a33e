#include "daemon/service/grant_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <new>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "daemon/service/threads/task_thread.h"
#include "proto/base/find.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

absl::StatusOr<UniqueFd> MakePage(const char* name, size_t size) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "make a grant page");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
          0) {
    return ErrnoStatus(errno, "size a grant page");
  }
  return fd;
}

// Reading a page of another size could go beyond its end.
absl::Status CheckPage(const UniqueFd& fd, size_t size, const char* name) {
  struct stat file = {};
  if (fstat(fd.get(), &file) != 0) return ErrnoStatus(errno, name);
  if (file.st_size == static_cast<off_t>(size)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} of an earlier daemon has {} bytes instead of {}", name,
                  file.st_size, size));
}

template <typename Page>
absl::StatusOr<Page*> MapPage(const UniqueFd& fd) {
  void* const page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE,
                          MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, "map a grant page");
  return std::launder(static_cast<Page*>(page));
}

// FailedPrecondition: `kept` is no limits page of this version.
absl::Status CheckLimits(const UniqueFd& kept) {
  return CheckPage(kept, sizeof(GrantLimits), "the page of limits");
}

}  // namespace

GrantPages::GrantPages(std::vector<LinkSpeed> links, const Clock* clock)
    : clock_(clock),
      policy_(std::make_unique<GrantPolicy>(std::move(links))),
      last_refill_(clock->Now()) {}

uint64_t GrantPages::GenerationOf(const UniqueFd& kept) {
  uint64_t generation = 0;
  const bool read =
      CheckLimits(kept).ok() &&
      pread(kept.get(), &generation, sizeof(generation),
            offsetof(GrantLimits, generation)) == sizeof(generation);
  return read ? generation : 0;
}

absl::StatusOr<std::unique_ptr<GrantPages>> GrantPages::Start(
    std::vector<LinkSpeed> links, uint64_t generation, const Clock* clock,
    UniqueFd kept) {
  const bool is_new = !kept;
  UniqueFd writer = std::move(kept);
  if (is_new) {
    SLUICE_ASSIGN_OR_RETURN(
        writer, MakePage("sluice grant limits", sizeof(GrantLimits)));
  }
  SLUICE_ASSIGN_OR_RETURN(GrantLimits * page, MapPage<GrantLimits>(writer));
  auto pages =
      std::unique_ptr<GrantPages>(new GrantPages(std::move(links), clock));
  pages->limits_.reset(is_new ? new (page) GrantLimits() : page);
  pages->limits_->generation = generation;
  // Without write permission, other users cannot reopen their read-only
  // descriptor for writing.
  if (fchmod(writer.get(), 0444) != 0) {
    return ErrnoStatus(errno, "protect the grant page");
  }
  UniqueFd reader(open(fmt::format("/proc/self/fd/{}", writer.get()).c_str(),
                       O_RDONLY | O_CLOEXEC));
  if (!reader) return ErrnoStatus(errno, "open the grant page for reading");
  pages->limits_writer_ = std::move(writer);
  pages->limits_reader_ = std::make_shared<const UniqueFd>(std::move(reader));
  pages->thread_ = std::thread([raw = pages.get()] { raw->Work(); });
  pthread_setname_np(pages->thread_.native_handle(), "grants");
  return pages;
}

GrantPages::~GrantPages() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }
}

void GrantPages::Beat() {
  limits_->heartbeat_ns.store(
      static_cast<uint64_t>(absl::ToUnixNanos(clock_->Now())),
      std::memory_order_release);
}

absl::StatusOr<UniqueFd> GrantPages::Attach(int slot, int link,
                                            const GrantSharer& sharer) {
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd,
                          MakePage("sluice grant use", sizeof(GrantUse)));
  SLUICE_ASSIGN_OR_RETURN(GrantUse * page, MapPage<GrantUse>(fd));
  const MutexLock lock(mutex_);
  Open(slot, UsePage(page), policy_->Attach(slot, link, sharer));
  return fd;
}

void GrantPages::Open(int slot, UsePage page, const GrantPolicy::Grant& first) {
  pages_[slot] = std::move(page);
  Publish(slot, first);
  Beat();
  changed_.NotifyAll();
}

absl::Status GrantPages::Resume(int slot, int link, const GrantSharer& sharer,
                                const UniqueFd& use) {
  SLUICE_RETURN_IF_ERROR(CheckPage(use, sizeof(GrantUse), "a use page"));
  SLUICE_ASSIGN_OR_RETURN(GrantUse * page, MapPage<GrantUse>(use));
  UsePage mapped(page);
  const GrantLimitSlot& from = limits_->slots[slot];
  Directions limit = {}, used = {};
  for (int d : {kH2d, kD2h}) {
    limit[d] = from.limit_bytes[d].load(std::memory_order_relaxed);
    used[d] = mapped->slot.used_bytes[d].load(std::memory_order_relaxed);
  }
  const MutexLock lock(mutex_);
  Open(slot, std::move(mapped),
       policy_->Resume(slot, link, sharer, limit, used));
  return absl::OkStatus();
}

void GrantPages::UseLinks(std::vector<LinkSpeed> links) {
  auto policy = std::make_unique<GrantPolicy>(std::move(links));
  const MutexLock lock(mutex_);
  SLUICE_CHECK(policy_->idle());
  policy_ = std::move(policy);
}

void GrantPages::Detach(int slot) {
  const MutexLock lock(mutex_);
  policy_->Detach(slot);
  pages_.erase(slot);
}

void GrantPages::Promise(int slot, const CopyRates& rates) {
  const MutexLock lock(mutex_);
  if (pages_.contains(slot)) policy_->Promise(slot, rates);
}

void GrantPages::Hold(int slot, bool holds) {
  const MutexLock lock(mutex_);
  if (pages_.contains(slot)) policy_->Hold(slot, holds);
}

std::map<int, Directions> GrantPages::Used() {
  const MutexLock lock(mutex_);
  return policy_->used();
}

std::map<int, LateDirections> GrantPages::Late() {
  const MutexLock lock(mutex_);
  return policy_->late();
}

void GrantPages::Publish(int slot, const GrantPolicy::Grant& grant) {
  GrantLimitSlot& to = limits_->slots[slot];
  for (int d : {kH2d, kD2h}) {
    to.limit_bytes[d].store(grant.limit[d], std::memory_order_release);
    to.bytes_per_second[d].store(grant.rate[d], std::memory_order_relaxed);
  }
}

std::map<int, GrantPolicy::Needs> GrantPages::ReadNeeds(absl::Time now) const {
  constexpr uint64_t kLast = std::numeric_limits<int64_t>::max();
  std::map<int, GrantPolicy::Needs> needs;
  for (const auto& [slot, page] : pages_) {
    for (int d : {kH2d, kD2h}) {
      const GrantUseSlot& use = page->slot;
      const uint64_t up_to = use.due_bytes[d].load(std::memory_order_acquire);
      if (up_to == 0) continue;
      // The rank writes due_ns before due_bytes, so `at` is the deadline of the
      // copy that ends at `up_to`, or of a later one. With the deadline of an
      // earlier copy, which may have passed, the copy would count as late.
      const uint64_t at = use.due_ns[d].load(std::memory_order_relaxed);
      needs[slot][d] = {
          up_to,
          absl::FromUnixNanos(static_cast<int64_t>(std::min(at, kLast))) - now};
    }
  }
  return needs;
}

void GrantPages::Refill() {
  std::map<int, Directions> used;
  for (const auto& [slot, page] : pages_) {
    for (int d : {kH2d, kD2h}) {
      used[slot][d] = page->slot.used_bytes[d].load(std::memory_order_relaxed);
    }
  }
  const absl::Time now = clock_->Now();
  const absl::Duration since = now - std::exchange(last_refill_, now);
  if (since > kGrantStaleAfter) ++stale_periods_;
  if (policy_->IsSettled(used)) {
    policy_->Pass(since);
  } else {
    for (const auto& [slot, grant] :
         policy_->Refill(used, since, ReadNeeds(now))) {
      Publish(slot, grant);
    }
  }
  Beat();
}

void GrantPages::Work() {
  // This thread runs before others, which lose little time: a refill is short.
  if (!GoBeforeOthers()) {
    constexpr int kNice = -15;
    (void)setpriority(PRIO_PROCESS, 0, kNice);  // this thread; may be refused
  }
  const MutexLock lock(mutex_);
  while (!stopping_) {
    if (policy_->idle()) {
      changed_.Wait(mutex_);
      last_refill_ = clock_->Now();
      continue;
    }
    Refill();
    const auto next = CondVar::Deadline(kRefill);
    while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
    }
  }
}

absl::StatusOr<std::unique_ptr<RankGrants>> RankGrants::Start(
    Parts parts, std::vector<LinkSpeed> links) {
  UniqueFd kept = parts.handover->Take(Handover::kLimits);
  const absl::Status usable = kept ? CheckLimits(kept) : absl::OkStatus();
  if (!usable.ok()) {
    WriteLog(LogLevel::kError, std::string(usable.message()));
    parts.handover->Drop(Handover::kLimits);
    kept.Reset();
  }
  SLUICE_ASSIGN_OR_RETURN(
      auto pages, GrantPages::Start(std::move(links), parts.node->generation,
                                    parts.clock, std::move(kept)));
  return std::unique_ptr<RankGrants>(new RankGrants(parts, std::move(pages)));
}

int RankGrants::LinkIndexOf(DeviceIndex gpu) const {
  const std::vector<size_t> path =
      LinkPath(parts_.node->links, parts_.node->gpus[gpu.value()].link);
  return path.empty() ? -1 : static_cast<int>(path[0]);
}

void RankGrants::Take(int slot, const Principal& who) {
  slots_[slot] = who;
  crash_ranks = static_cast<int>(slots_.size());
  parts_.quotas->Charge(who, Resource::kRanks);
}

SharedFd RankGrants::Attach(const AttachGrants& effect, const Principal& who) {
  Take(effect.slot, who);
  const auto page =
      ToShared(pages_->Attach(effect.slot, LinkIndexOf(effect.gpu),
                              {who, effect.weight, /*holds=*/false}));
  if (page.ok()) return use_pages_[effect.session] = *page;
  no_page_ = page.status();
  WriteLog(LogLevel::kError, std::string(no_page_.message()));
  return nullptr;
}

absl::Status RankGrants::Resume(const Session& rank, double weight,
                                bool holds) {
  auto page = std::make_shared<const UniqueFd>(
      parts_.handover->Take(Handover::UsePageOf(rank.id)));
  SLUICE_RETURN_IF_ERROR(
      pages_->Resume(rank.grant_slot, LinkIndexOf(rank.hello.gpu),
                     {rank.peer.principal, weight, holds}, *page));
  Take(rank.grant_slot, rank.peer.principal);
  use_pages_[rank.id] = std::move(page);
  return absl::OkStatus();
}

void RankGrants::Detach(int slot) {
  pages_->Detach(slot);
  auto whose = slots_.extract(slot);
  if (whose.empty()) return;  // belongs to a rank that was not taken over
  crash_ranks = static_cast<int>(slots_.size());
  parts_.quotas->GiveBack(whose.mapped(), Resource::kRanks);
}

void RankGrants::DropUsePage(SessionId id) {
  parts_.handover->Drop(Handover::UsePageOf(id));
  use_pages_.erase(id);
}

absl::StatusOr<SharedFd> RankGrants::UsePageOf(SessionId id) const {
  if (const auto* page = FindOrNull(use_pages_, id)) return *page;
  return absl::ResourceExhaustedError(
      fmt::format("no grant page could be made for this session: {}",
                  std::string(no_page_.message())));
}

}  // namespace sluice::daemon
