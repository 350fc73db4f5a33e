// Streams the objects of one array of a JSON document (internal to
// planner/trace): a profiler's trace of hundreds of MB is never a DOM.
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

// A field of a record as it was written.
struct JsonField {
  enum class Kind { kMissing, kInteger, kNumber, kText, kOther };
  Kind kind = Kind::kMissing;
  std::string text;  // digits of a number, the characters of a text
};

// One object: fields in the order they were asked for; unused ones missing.
struct JsonRecord {
  int64_t index = 0;  // in the array, from 0
  std::vector<JsonField> fields;
};

struct RecordQuery {
  // The array: a key of the root object, or (in addition) the root itself.
  std::string array;
  bool root_array = false;
  // "name", or "args.Addr" for a field of an object inside the record.
  std::vector<std::string> fields;
  // A number of the root object, before or after the array, and where its text
  // goes.
  std::string root_field;
  std::string* root_value = nullptr;
};

// Calls `take` for every object of the array until it fails. InvalidArgument:
// no JSON (with line and column), no such array, or what `take` said.
absl::Status ReadJsonRecords(
    std::istream& in, const std::string& file, const RecordQuery& query,
    const std::function<absl::Status(const JsonRecord&)>& take);

// Keys of the root object that begin in `prefix`, in order; "[" for an array.
std::vector<std::string> RootKeys(std::string_view prefix);

}  // namespace sluice::planner
