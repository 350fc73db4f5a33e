// A map that records which rows changed since the last TakeChanged, because the
// daemon saves only changed rows (daemon/state). Thread safety: one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "proto/base/status.h"

namespace sluice {

template <typename Key, typename Row>
class Table {
 public:
  using Rows = std::map<Key, Row>;
  using key_type = Key;
  using mapped_type = Row;
  using const_iterator = typename Rows::const_iterator;

  const Rows& rows() const { return rows_; }
  const_iterator begin() const { return rows_.begin(); }
  const_iterator end() const { return rows_.end(); }
  const_iterator find(const Key& key) const { return rows_.find(key); }
  const_iterator lower_bound(const Key& key) const {
    return rows_.lower_bound(key);
  }
  const_iterator upper_bound(const Key& key) const {
    return rows_.upper_bound(key);
  }
  const Row& at(const Key& key) const { return rows_.at(key); }
  bool contains(const Key& key) const { return rows_.contains(key); }
  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }

  // These four return the row for writing. Edit REQUIRES: the row exists.
  Row& Edit(const Key& key) {
    Row* row = Find(key);
    SLUICE_CHECK(row != nullptr);
    return *row;
  }
  // Returns null if the row does not exist.
  Row* Find(const Key& key) {
    const auto found = rows_.find(key);
    if (found == rows_.end()) return nullptr;
    Note(key);
    return &found->second;
  }
  // REQUIRES: no row has this key.
  Row& Insert(const Key& key, Row row = {}) {
    const auto [at, is_new] = rows_.emplace(key, std::move(row));
    SLUICE_CHECK(is_new);
    Note(key);
    return at->second;
  }
  Row& Put(const Key& key) {
    Note(key);
    return rows_[key];
  }
  void erase(const_iterator at) {
    Note(at->first);
    rows_.erase(at);
  }
  // Erases the row if it exists. `key` may be a reference to the row's key.
  void erase(const Key& key) {
    const auto found = rows_.find(key);
    if (found != rows_.end()) erase(found);
  }
  void EraseIf(auto gone) {
    for (auto each = begin(); each != end();) {
      const auto at = each++;
      if (gone(at->first, at->second)) erase(at);
    }
  }

  // Replaces all rows by saved ones; the next TakeChanged visits all.
  void Load(Rows rows) {
    rows_ = std::move(rows);
    ++changes_;
    TouchAll();
  }
  // Calls visit(key, row) once for each row that changed since the last call,
  // and for all rows at the first call. `row` is null if the row was erased. If
  // rows contain tables, `visit` may call TakeChanged of these tables, but must
  // not change rows otherwise.
  void TakeChanged(auto visit) {
    if (!std::exchange(notes_, true)) {
      for (auto& [key, row] : rows_) visit(key, &row);
      return;
    }
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()),
                   changed_.end());
    for (const Key& key : changed_) {
      const auto found = rows_.find(key);
      visit(key, found != rows_.end() ? &found->second : nullptr);
    }
    changed_.clear();
  }
  // Makes the next TakeChanged visit all rows. Until then changes are not
  // recorded, so a table that is never saved costs nothing.
  void TouchAll() {
    notes_ = false;
    changed_ = {};
  }
  size_t noted() const { return changed_.size(); }
  // Returns the number of changes, recorded or not.
  uint64_t changes() const { return changes_; }
  bool operator==(const Table& other) const { return rows_ == other.rows_; }

 private:
  void Note(const Key& key) {
    ++changes_;
    if (!notes_) return;
    if (changed_.empty() || changed_.back() != key) changed_.push_back(key);
  }

  Rows rows_;
  uint64_t changes_ = 0;
  bool notes_ = false;  // TakeChanged was called after TouchAll
  std::vector<Key> changed_;
};

}  // namespace sluice
