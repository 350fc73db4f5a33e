// Streams the objects of one array of a JSON document, which may be too large
// for a DOM in memory (internal to planner/trace).
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice::planner {

struct JsonField {
  enum class Kind { kMissing, kInteger, kNumber, kText, kOther };
  Kind kind = Kind::kMissing;
  std::string text;  // a number's digits or a string's characters
};

// The requested fields of one object of the array, in the query's order.
struct JsonRecord {
  int64_t index = 0;  // in the array
  std::vector<JsonField> fields;
};

struct RecordQuery {
  std::string array;        // a key of the root object
  bool root_array = false;  // the root may also be the array
  // "name", or "args.Addr" for a field of an object inside the record.
  std::vector<std::string> fields;
  // A field of the root object to read as well; its text goes to `root_value`,
  // unless that is null.
  std::string root_field;
  std::string* root_value = nullptr;
};

// Calls `take` for every object of the array until `take` returns an error,
// which is then returned unchanged. InvalidArgument: the JSON is invalid (with
// line and column), or the array is missing.
absl::Status ReadJsonRecords(
    std::istream& in, const std::string& file, const RecordQuery& query,
    const std::function<absl::Status(const JsonRecord&)>& take);

// Returns the root object's keys that begin within `prefix`, in order, or "["
// if the root is an array.
std::vector<std::string> RootKeys(std::string_view prefix);

}  // namespace sluice::planner
