#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice::plan {

// Parses `bytes`. Refuses invalid JSON, repeated keys and deep nesting.
nlohmann::json ParseChecked(std::string_view bytes, size_t max_bytes,
                            absl::Status* status);

// Reads one JSON object or array element. The shared status keeps the first
// error with its full path. After an error every read returns a harmless
// default, so decoders need no branches.
class FieldReader {
 public:
  // `json` and `status` must outlive the reader.
  FieldReader(const nlohmann::json& json, std::string path,
              absl::Status* status)
      : json_(json), path_(std::move(path)), status_(status) {}

  bool ok() const { return status_->ok(); }

  // These read a field of the object.
  int64_t Int(const char* key, int64_t low, int64_t high);
  double Number(const char* key, double low, double high);
  bool Flag(const char* key);
  std::string Text(const char* key, size_t max_bytes);
  std::string Choice(const char* key,
                     std::initializer_list<std::string_view> choices);
  FieldReader Object(const char* key);
  // Returns whether the field exists. The functions above require it.
  bool Has(const char* key) const {
    return ok() && json_.is_object() && json_.contains(key);
  }
  bool WasRead(const std::string& key) const { return seen_.contains(key); }

  // Calls read(FieldReader element, size_t index) for each element of array
  // `key`.
  void Each(const char* key, size_t max, auto read) {
    const nlohmann::json* array = Find(key);
    if (array == nullptr) return;
    if (!array->is_array()) return Refuse(key, "is not a list");
    if (array->size() > max) {
      return Refuse(key, fmt::format("has {} entries; the limit is {}",
                                     array->size(), max));
    }
    for (size_t i = 0; i < array->size() && ok(); ++i) {
      read(FieldReader((*array)[i], fmt::format("{}[{}]", PathOf(key), i),
                       status_),
           i);
    }
  }

  // `Self` and `SelfText` read this element itself. `At` reads its i-th entry,
  // which errors call `name`. `At` REQUIRES: i < Entries().
  int64_t Self(int64_t low, int64_t high);
  std::string SelfText(size_t max_bytes);
  size_t Entries() const { return json_.is_array() ? json_.size() : 0; }
  int64_t At(size_t i, const char* name, int64_t low, int64_t high);

  // Refuses fields that were not read. Call it after all reads.
  void Finish();
  // Records the error `path.key: complaint` unless there is one already.
  void Refuse(const std::string& key, const std::string& complaint);

 private:
  const nlohmann::json* Find(const char* key);
  // Also refuses a field for which `is` returns false; `what` names the type.
  const nlohmann::json* Find(const char* key,
                             bool (nlohmann::json::*is)() const noexcept,
                             const char* what);
  std::string PathOf(const std::string& key) const;
  std::string CheckText(const nlohmann::json& value, const std::string& key,
                        size_t max_bytes);
  int64_t CheckInt(const nlohmann::json& value, const std::string& key,
                   int64_t low, int64_t high);

  const nlohmann::json& json_;
  std::string path_;
  absl::Status* status_;
  std::set<std::string, std::less<>> seen_;
};

}  // namespace sluice::plan
