// The users that the user namespace of this process can name.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

struct UserMap {
  uint64_t mapped = UINT32_MAX;  // count of users; UINT32_MAX: all
  // The kernel shows each unmapped user as this one.
  uint32_t overflow_uid = 65534;

  // Parses the text of a uid_map.
  static UserMap Of(std::string_view uid_map);
  // Reads /proc/self/uid_map and /proc/sys/kernel/overflowuid.
  static UserMap OfThisProcess();

  // Returns whether `uid` may stand for unmapped users.
  bool MayBeUnmapped(uint32_t uid) const {
    return uid == overflow_uid && mapped < UINT32_MAX;
  }
};

}  // namespace sluice
