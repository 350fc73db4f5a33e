#include "daemon/store/descriptor_name.h"

#include <algorithm>

namespace sluice::daemon {

bool IsDescriptorName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxDescriptorName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

}  // namespace sluice::daemon
