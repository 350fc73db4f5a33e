// Profiles and plans. They are immutable and shared, so each is written once,
// and its number wherever a row names it.
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice::daemon {

class Objects {
 public:
  // --- writing ---------------------------------------------------------------
  // Returns the object's number, from 1 on; a new object is queued to be
  // written. Keeps the object until Clear, so that no other object gets its
  // address.
  template <typename T, typename Encode>
  uint64_t Number(const std::shared_ptr<const T>& object, Encode encode) {
    const auto [at, is_new] =
        written_.try_emplace(object.get(), written_.size() + 1, object);
    if (is_new) new_.emplace_back(at->second.first, encode());
    return at->second.first;
  }
  // Returns the objects numbered since the last call, as bytes.
  std::vector<std::pair<uint64_t, std::string>> TakeNew() {
    return std::exchange(new_, {});
  }
  // Drops all objects; numbers start from 1 again.
  void Clear() { written_.clear(); }

  // --- reading ---------------------------------------------------------------
  void Add(uint64_t number, std::string bytes) {
    read_[number] = {std::move(bytes), nullptr};
  }
  // Returns the object with that number, decoded once; null if there is none,
  // or `decode` failed.
  template <typename T, typename Decode>
  std::shared_ptr<const T> Find(uint64_t number, Decode decode) {
    const auto found = read_.find(number);
    if (found == read_.end()) return nullptr;
    auto& [bytes, object] = found->second;
    if (object == nullptr) object = decode(bytes);
    return std::static_pointer_cast<const T>(object);
  }

 private:
  std::map<const void*, std::pair<uint64_t, std::shared_ptr<const void>>>
      written_;
  std::vector<std::pair<uint64_t, std::string>> new_;
  std::map<uint64_t, std::pair<std::string, std::shared_ptr<const void>>> read_;
};

}  // namespace sluice::daemon
