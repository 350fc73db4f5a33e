// Streams the objects of one array of a JSON document (internal to
// planner/trace), because a profiler's trace of hundreds of MB does not fit a
// DOM.
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice::planner {

// A field of a record, as written in the file.
struct JsonField {
  enum class Kind { kMissing, kInteger, kNumber, kText, kOther };
  Kind kind = Kind::kMissing;
  std::string text;  // a number's digits or a string's characters
};

// One object: the requested fields, in the order of the request. Absent ones
// are missing.
struct JsonRecord {
  int64_t index = 0;  // index in the array, from 0
  std::vector<JsonField> fields;
};

struct RecordQuery {
  // The array: a key of the root object, or also the root itself.
  std::string array;
  bool root_array = false;
  // "name", or "args.Addr" for a field of an object inside the record.
  std::vector<std::string> fields;
  // A number of the root object, before or after the array, and where its text
  // is stored.
  std::string root_field;
  std::string* root_value = nullptr;
};

// Calls `take` for every object of the array until it fails. InvalidArgument:
// invalid JSON (with line and column), or the array is missing. Returns errors
// of `take` unchanged.
absl::Status ReadJsonRecords(
    std::istream& in, const std::string& file, const RecordQuery& query,
    const std::function<absl::Status(const JsonRecord&)>& take);

// Returns the keys of the root object that begin in `prefix`, in order; "[" for
// an array.
std::vector<std::string> RootKeys(std::string_view prefix);

}  // namespace sluice::planner
