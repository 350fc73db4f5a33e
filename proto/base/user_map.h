#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

// The users that the user namespace of this process can name.
struct UserMap {
  uint64_t mapped = UINT32_MAX;  // number of mapped users; UINT32_MAX: all
  // The id that the kernel shows for every unmapped user.
  uint32_t overflow_uid = 65534;

  static UserMap Of(std::string_view uid_map);
  static UserMap OfThisProcess();

  // Returns whether `uid` may be the id shown for unmapped users.
  bool MayBeUnmapped(uint32_t uid) const {
    return uid == overflow_uid && mapped < UINT32_MAX;
  }
};

}  // namespace sluice
