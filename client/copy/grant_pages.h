// Maps the two shared pages of grants. Internal to client.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/base/grant_page.h"
#include "proto/base/unique_fd.h"

namespace sluice::client {

// Unmaps on destruction. A forked child does not inherit the pages.
class GrantPages {
 public:
  // Maps `limits` read-only. InvalidArgument: a page is too small.
  static absl::StatusOr<std::unique_ptr<GrantPages>> Map(const UniqueFd& limits,
                                                         const UniqueFd& use);
  ~GrantPages();
  GrantPages(const GrantPages&) = delete;
  GrantPages& operator=(const GrantPages&) = delete;

  const GrantLimits* limits() const { return limits_; }
  GrantUse* use() const { return use_; }

 private:
  GrantPages() = default;

  const GrantLimits* limits_ = nullptr;
  GrantUse* use_ = nullptr;
};

}  // namespace sluice::client
