#include "client/copy/grant_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "proto/base/status.h"

namespace sluice::client {
namespace {

absl::StatusOr<void*> MapPage(const UniqueFd& fd, size_t size, int protection) {
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "a grant page");
  // Reading beyond the end of the file would raise SIGBUS.
  if (static_cast<size_t>(info.st_size) < size) {
    return absl::InvalidArgumentError(fmt::format(
        "a grant page of {} bytes, it needs {}: install the same version of "
        "sluiced and libsluice",
        info.st_size, size));
  }
  void* page = mmap(nullptr, size, protection, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, "map a grant page");
  madvise(page, size, MADV_DONTFORK);
  return page;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrantPages>> GrantPages::Map(
    const UniqueFd& limits, const UniqueFd& use) {
  std::unique_ptr<GrantPages> pages(new GrantPages());
  SLUICE_ASSIGN_OR_RETURN(void* const limit_page,
                          MapPage(limits, sizeof(GrantLimits), PROT_READ));
  pages->limits_ = static_cast<const GrantLimits*>(limit_page);
  SLUICE_ASSIGN_OR_RETURN(
      void* const use_page,
      MapPage(use, sizeof(GrantUse), PROT_READ | PROT_WRITE));
  pages->use_ = static_cast<GrantUse*>(use_page);
  return pages;
}

GrantPages::~GrantPages() {
  if (limits_) munmap(const_cast<GrantLimits*>(limits_), sizeof(GrantLimits));
  if (use_) munmap(use_, sizeof(GrantUse));
}

}  // namespace sluice::client
