// A queue for one shared server. Users share the server's time evenly, however
// many entries each has and however long they take.
//
// Start-time fair queueing. Each user has a virtual time, the sum of the times
// of its entries. The user with the least virtual time is next; among equals,
// the one that was served longest ago. A user that returns after a pause starts
// at least at the virtual time of the user served last, so no user saves time
// up, and its first entry waits for at most one entry of each other user.
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/find.h"

namespace sluice::daemon {

template <typename Key, typename Entry>
class FairQueue {
 public:
  void Push(const Key& who, Entry entry) {
    User& user = users_[who];
    if (user.entries.empty()) user.spent = std::max(user.spent, least_);
    user.entries.push_back(std::move(entry));
    ++waiting_;
  }

  // Returns the next entry of a user that `may` allows; nullopt if none waits.
  template <typename May>
  std::optional<std::pair<Key, Entry>> Pop(May may) {
    const Key* key = nullptr;
    User* next = nullptr;
    for (auto& [who, user] : users_) {
      if (user.entries.empty() || !may(who)) continue;
      if (next != nullptr && !user.before(*next)) continue;
      key = &who;
      next = &user;
    }
    if (next == nullptr) return std::nullopt;
    std::pair<Key, Entry> popped(*key, std::move(next->entries.front()));
    next->entries.pop_front();
    next->turn = ++turns_;
    --waiting_;
    least_ = std::max(least_, next->spent);
    return popped;
  }
  std::optional<std::pair<Key, Entry>> Pop() {
    return Pop([](const Key&) { return true; });
  }

  // Charges the user `time` for an entry that was popped.
  void Spent(const Key& who, absl::Duration time) {
    User& user = users_[who];
    user.spent =
        std::max(user.spent, least_) + std::max(time, absl::ZeroDuration());
    Forget();
  }

  // Removes and returns the entries for which `gone` returns true.
  template <typename Gone>
  std::vector<Entry> Remove(Gone gone) {
    std::vector<Entry> removed;
    for (auto& [who, user] : users_) {
      std::erase_if(user.entries, [&](Entry& entry) {
        if (!gone(entry)) return false;
        removed.push_back(std::move(entry));
        return true;
      });
    }
    waiting_ -= removed.size();
    Forget();
    return removed;
  }

  bool empty() const { return waiting_ == 0; }
  size_t waiting() const { return waiting_; }
  size_t waiting(const Key& who) const {
    const User* user = FindOrNull(users_, who);
    return user != nullptr ? user->entries.size() : 0;
  }
  // Returns how many users are remembered: those with entries, and those with
  // more virtual time than the user served last.
  size_t users() const { return users_.size(); }

 private:
  struct User {
    absl::Duration spent;  // virtual time
    uint64_t turn = 0;     // number of its last service; 0: none yet
    std::deque<Entry> entries;
    bool before(const User& other) const {
      return std::tie(spent, turn) < std::tie(other.spent, other.turn);
    }
  };

  void Forget() {
    if (waiting_ == 0) {
      users_.clear();
      least_ = absl::ZeroDuration();
      return;
    }
    std::erase_if(users_, [this](const auto& each) {
      return each.second.entries.empty() && each.second.spent <= least_;
    });
  }

  std::map<Key, User> users_;
  size_t waiting_ = 0;
  uint64_t turns_ = 0;
  // Virtual time of the user served last, when it was served.
  absl::Duration least_;
};

}  // namespace sluice::daemon
