// Lookups in a map or a Table that return no iterator.
#pragma once

namespace sluice {

template <typename Map>
auto* FindOrNull(Map& map, const typename Map::key_type& key) {
  const auto found = map.find(key);
  return found != map.end() ? &found->second : nullptr;
}

template <typename Map>
typename Map::mapped_type FindOr(const Map& map,
                                 const typename Map::key_type& key,
                                 typename Map::mapped_type otherwise = {}) {
  const auto* found = FindOrNull(map, key);
  return found != nullptr ? *found : otherwise;
}

}  // namespace sluice
