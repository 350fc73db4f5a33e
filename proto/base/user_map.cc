#include "proto/base/user_map.h"

#include <sstream>
#include <string>

#include "proto/base/file_text.h"

namespace sluice {

UserMap UserMap::Of(std::string_view uid_map) {
  UserMap users{.mapped = 0};
  std::istringstream lines{std::string(uid_map)};
  for (uint64_t inside, outside, count; lines >> inside >> outside >> count;) {
    users.mapped += count;
  }
  return users;
}

UserMap UserMap::OfThisProcess() {
  UserMap users = Of(TextOf("/proc/self/uid_map"));
  std::istringstream overflow(TextOf("/proc/sys/kernel/overflowuid"));
  if (uint32_t uid; overflow >> uid) users.overflow_uid = uid;
  return users;
}

}  // namespace sluice
