#include "daemon/quota/principal.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

constexpr std::string_view kSlurm = "/system.slice/slurmstepd";

std::vector<std::string> NamesOf(std::string_view path) {
  std::vector<std::string> names;
  std::istringstream parts{std::string(path)};
  for (std::string name; std::getline(parts, name, '/');) {
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

bool Matches(const std::vector<std::string>& prefix,
             const std::vector<std::string>& names) {
  if (names.size() < prefix.size()) return false;
  for (size_t i = 0; i < prefix.size(); ++i) {
    if (fnmatch(prefix[i].c_str(), names[i].c_str(), FNM_NOESCAPE) != 0) {
      return false;
    }
  }
  return true;
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
    if (!prefix.starts_with('/') ||
        std::count(names.begin(), names.end(), "..") > 0) {
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
  // A process in a cgroup that matches a prefix exactly has no lower level to
  // cut at.
  const size_t kept = std::min(longest->size() + 1, names.size());
  std::string path;
  for (size_t i = 0; i < kept; ++i) path += "/" + names[i];
  return path.empty() ? "/" : path;
}

}  // namespace sluice::daemon
