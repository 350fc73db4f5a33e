#include "daemon/core/links.h"

#include <algorithm>

namespace sluice::daemon {

std::vector<size_t> LinkPath(const std::vector<LinkSpeed>& links,
                             const std::string& name) {
  std::vector<size_t> path;
  std::string next = name;
  while (!next.empty() && path.size() <= links.size()) {
    const auto at =
        std::find_if(links.begin(), links.end(),
                     [&](const LinkSpeed& link) { return link.name == next; });
    if (at == links.end()) break;
    const auto index = static_cast<size_t>(at - links.begin());
    if (std::find(path.begin(), path.end(), index) != path.end()) break;
    path.push_back(index);
    next = at->parent;
  }
  return path;
}

bool Loads(const std::vector<LinkSpeed>& links, const std::string& name,
           const std::string& other) {
  const std::vector<size_t> path = LinkPath(links, name);
  return std::any_of(path.begin(), path.end(),
                     [&](size_t i) { return links[i].name == other; });
}

}  // namespace sluice::daemon
