#include "daemon/quota/principal.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

constexpr std::string_view kSlurm = "/system.slice/slurmstepd";

std::vector<std::string> NamesOf(std::string_view path) {
  return absl::StrSplit(std::string(path), '/', absl::SkipEmpty());
}

bool Matches(const std::vector<std::string>& prefix,
             const std::vector<std::string>& names) {
  return prefix.size() <= names.size() &&
         std::equal(prefix.begin(), prefix.end(), names.begin(),
                    [](const std::string& part, const std::string& name) {
                      return fnmatch(part.c_str(), name.c_str(),
                                     FNM_NOESCAPE) == 0;
                    });
}

}  // namespace

std::string Name(const Principal& principal) {
  return principal.cgroup.empty() ? fmt::format("user {}", principal.uid)
                                  : fmt::format("user {} ({})", principal.uid,
                                                Printable(principal.cgroup));
}

bool HasHeir(const Principal& principal) {
  return principal.cgroup.empty() || principal.cgroup.starts_with(kSlurm);
}

bool Inherits(const Principal& from, const Principal& to) {
  return from.uid == to.uid && from.cgroup.starts_with(kSlurm) &&
         to.cgroup.starts_with(kSlurm);
}

const std::vector<std::string>& CgroupCut::Defaults() {
  static const auto* const prefixes =
      new std::vector<std::string>{"/kubepods*",
                                   "/kubepods*/burstable",
                                   "/kubepods*/besteffort",
                                   "/kubepods*/kubepods-burstable.slice",
                                   "/kubepods*/kubepods-besteffort.slice",
                                   "/system.slice/slurmstepd*"};
  return *prefixes;
}

absl::StatusOr<CgroupCut> CgroupCut::Make(std::vector<std::string> prefixes) {
  CgroupCut cut;
  for (const std::string& prefix : prefixes) {
    std::vector<std::string> names = NamesOf(prefix);
    if (!prefix.starts_with('/') || std::ranges::count(names, "..") > 0) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is no path of a cgroup: it must begin with / and have no ..",
          prefix));
    }
    cut.prefixes_.push_back(std::move(names));
  }
  return cut;
}

std::string CgroupCut::Of(std::string_view cgroup) const {
  const std::vector<std::string> names = NamesOf(cgroup);
  const std::vector<std::string>* longest = nullptr;
  for (const auto& prefix : prefixes_) {
    if (longest && prefix.size() <= longest->size()) continue;
    if (Matches(prefix, names)) longest = &prefix;
  }
  if (longest == nullptr) return "";
  // A cgroup that matches a prefix exactly has no lower level to cut at.
  const size_t kept = std::min(longest->size() + 1, names.size());
  return fmt::format("/{}",
                     fmt::join(names.begin(), names.begin() + kept, "/"));
}

}  // namespace sluice::daemon
