#include "daemon/state/death_record.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/base/status.h"

namespace sluice::daemon {

constexpr uint64_t kThisLayout = 0x0131306874616564;  // "death01", 1

void DeathRecord::Unmap::operator()(Page* page) const {
  munmap(page, sizeof(Page));
}

absl::StatusOr<DeathRecord> DeathRecord::Open(UniqueFd left) {
  if (!left) left = UniqueFd(memfd_create("sluice-deaths", MFD_CLOEXEC));
  if (!left || ftruncate(left.get(), sizeof(Page)) != 0) {
    return ErrnoStatus(errno, "make the record of how daemons ended");
  }
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED,
                      left.get(), 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, "map the record of how daemons ended");
  }
  std::unique_ptr<Page, Unmap> page(static_cast<Page*>(memory));
  if (page->layout != kThisLayout) {
    *page = Page();
    page->layout = kThisLayout;
  }
  return DeathRecord(std::move(left), std::move(page));
}

void DeathRecord::Begin(absl::Time now) {
  if (page_->runs != 0) {
    page_->deaths[page_->next++ % page_->deaths.size()] =
        absl::ToUnixNanos(now);
  }
  page_->runs = 1;
}

int DeathRecord::Recent(absl::Time now) const {
  return static_cast<int>(
      std::ranges::count_if(page_->deaths, [now](int64_t death) {
        const absl::Time at = absl::FromUnixNanos(death);
        return death != 0 && at <= now && now - at < kWindow;
      }));
}

void DeathRecord::SayWhy(std::string_view why) {
  const size_t length = std::min(why.size(), page_->why.size() - 1);
  page_->why = {};
  std::copy_n(why.begin(), length, page_->why.begin());
}

std::string DeathRecord::why() const {
  return {page_->why.data(), strnlen(page_->why.data(), page_->why.size() - 1)};
}

}  // namespace sluice::daemon
