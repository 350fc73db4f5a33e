// Which users the user namespace of this process tells apart.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

struct UserMap {
  uint64_t mapped = UINT32_MAX;  // users; UINT32_MAX: every one there is
  // The kernel shows each user that is not mapped as this one.
  uint32_t overflow_uid = 65534;

  // From the text of a uid_map.
  static UserMap Of(std::string_view uid_map);
  // From /proc/self/uid_map and /proc/sys/kernel/overflowuid.
  static UserMap OfThisProcess();

  // Whether `uid` may stand for users that are not mapped.
  bool MayBeUnmapped(uint32_t uid) const {
    return uid == overflow_uid && mapped < UINT32_MAX;
  }
};

}  // namespace sluice
