// Lookups in a map or a Table that return no iterator.
#pragma once

namespace sluice {

// Returns the value of `key`, or null if the map has none.
template <typename Map>
auto* FindOrNull(Map& map, const typename Map::key_type& key) {
  const auto found = map.find(key);
  return found != map.end() ? &found->second : nullptr;
}

// Returns the value of `key`, or `otherwise` if the map has none.
template <typename Map>
typename Map::mapped_type FindOr(const Map& map,
                                 const typename Map::key_type& key,
                                 typename Map::mapped_type otherwise = {}) {
  const auto* found = FindOrNull(map, key);
  return found != nullptr ? *found : otherwise;
}

}  // namespace sluice
