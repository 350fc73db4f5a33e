#include "planner/trace/json_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "planner/trace/readers.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using nlohmann::json;

// Gives the array's records to `take`, and drops all other values at once.
class RecordHandler : public nlohmann::json_sax<json> {
 public:
  RecordHandler(std::string file, const RecordQuery& query,
                const std::function<absl::Status(const JsonRecord&)>& take)
      : file_(std::move(file)), query_(query), take_(take) {
    record_.fields.resize(query.fields.size());
  }

  const absl::Status& status() const { return status_; }
  bool found() const { return found_; }

  bool null() override { return Other(); }
  bool boolean(bool) override { return Other(); }
  bool binary(binary_t&) override { return Other(); }
  bool number_integer(number_integer_t value) override {
    return Value(JsonField::Kind::kInteger,
                 [&] { return fmt::to_string(value); });
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Value(JsonField::Kind::kInteger,
                 [&] { return fmt::to_string(value); });
  }
  bool number_float(number_float_t, const string_t& digits) override {
    return Value(JsonField::Kind::kNumber, [&] { return digits; });
  }
  bool string(string_t& text) override {
    return Value(JsonField::Kind::kText, [&] { return std::move(text); });
  }

  bool start_object(std::size_t) override {
    if (InArray() && depth_ == array_depth_) StartRecord();
    if (InRecord() && depth_ == array_depth_ + 1) outer_ = key_;
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1 || InRecord()) key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    --depth_;
    if (InRecord() && depth_ == array_depth_) return EndRecord();
    if (InRecord() && depth_ == array_depth_ + 1) outer_.clear();
    return true;
  }
  bool start_array(std::size_t) override {
    const bool ours =
        (depth_ == 1 && key_ == query_.array && !root_is_array_) ||
        (depth_ == 0 && query_.root_array);
    if (depth_ == 0) root_is_array_ = true;
    ++depth_;
    if (ours && !InArray()) {
      array_depth_ = depth_;
      found_ = true;
    }
    return true;
  }
  bool end_array() override {
    if (InArray() && depth_ == array_depth_) array_depth_ = 0;
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const json::exception& error) override {
    // nlohmann's message would repeat the input.
    const std::string what = error.what();
    const bool ended =
        what.find("unexpected end of input") != std::string::npos ||
        what.find("missing closing quote") != std::string::npos;
    constexpr size_t kMost = 20;
    const std::string_view token = last_token;
    const std::string cause =
        ended ? "was it cut off while it was written?"
              : fmt::format("{} cannot stand there",
                            Quoted(token.substr(
                                token.size() - std::min(token.size(), kMost))));
    const size_t line = what.find("at line ");
    const size_t colon = what.find(':', line);
    status_ =
        At({.file = file_},
           fmt::format("is no JSON (byte {}{}): {}", position,
                       line == std::string::npos
                           ? ""
                           : ", " + what.substr(line + 3, colon - line - 3),
                       cause));
    return false;
  }

 private:
  bool InArray() const { return array_depth_ > 0; }
  bool InRecord() const { return in_record_; }

  bool Other() {
    return Value(JsonField::Kind::kOther, [] { return std::string(); });
  }

  bool Value(JsonField::Kind kind, auto text) {
    // A value inside an array in a record is no field of the record.
    const int level = depth_ - array_depth_;
    if (depth_ == 1 && !root_is_array_ && query_.root_value != nullptr &&
        key_ == query_.root_field) {
      *query_.root_value = text();
    }
    if (!InRecord() || (level == 2 && outer_.empty()) || level > 2) return true;
    for (size_t k = 0; k < query_.fields.size(); ++k) {
      if (!Matches(query_.fields[k], level == 2)) continue;
      record_.fields[k] = {kind, text()};
      break;
    }
    return true;
  }

  bool Matches(std::string_view field, bool inner) const {
    if (!inner) return field == key_;
    return field.size() == outer_.size() + 1 + key_.size() &&
           field.starts_with(outer_) && field[outer_.size()] == '.' &&
           field.ends_with(key_);
  }

  void StartRecord() {
    in_record_ = true;
    outer_.clear();
    for (JsonField& field : record_.fields) field = {};
  }

  bool EndRecord() {
    in_record_ = false;
    status_ = take_(record_);
    ++record_.index;
    return status_.ok();
  }

  std::string file_;
  const RecordQuery& query_;
  const std::function<absl::Status(const JsonRecord&)>& take_;
  absl::Status status_;
  JsonRecord record_;
  std::string key_;
  std::string outer_;  // key of the current object inside the record, or ""
  int depth_ = 0;
  int array_depth_ = 0;  // depth of the array's elements; 0: outside the array
  bool in_record_ = false;
  bool root_is_array_ = false;
  bool found_ = false;
};

}  // namespace

absl::Status ReadJsonRecords(
    std::istream& in, const std::string& file, const RecordQuery& query,
    const std::function<absl::Status(const JsonRecord&)>& take) {
  RecordHandler handler(file, query, take);
  json::sax_parse(in, &handler);
  SLUICE_RETURN_IF_ERROR(handler.status());
  if (!handler.found()) {
    return At({.file = file},
              fmt::format("has no list '{}': name its format with --format",
                          query.array));
  }
  return absl::OkStatus();
}

std::vector<std::string> RootKeys(std::string_view prefix) {
  std::vector<std::string> keys;
  const auto note = [&keys](int depth, json::parse_event_t event, json& key) {
    if (depth == 0 && event == json::parse_event_t::array_start) {
      keys.push_back("[");
    }
    if (depth == 1 && event == json::parse_event_t::key) keys.push_back(key);
    return false;  // drops the value at once
  };
  [[maybe_unused]] const json rest =
      json::parse(prefix, note, /*allow_exceptions=*/false);
  return keys;
}

}  // namespace sluice::planner
