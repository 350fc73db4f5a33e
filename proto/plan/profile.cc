#include "proto/plan/profile.h"

namespace sluice::plan {

std::optional<size_t> FindKind(const RankProfile& profile,
                               std::string_view name) {
  for (size_t k = 0; k < profile.kinds.size(); ++k) {
    if (profile.kinds[k].name == name) return k;
  }
  return std::nullopt;
}

const LayerKind& KindOf(const RankProfile& profile,
                        const SkeletalClass& skeletal) {
  return profile.kinds[FindKind(profile, skeletal.kind).value()];
}

std::string FullName(const std::string& kind, const std::string& name) {
  return kind == kOneKind ? name : kind + "/" + name;
}

}  // namespace sluice::plan
