#include "proto/plan/json_reader.h"

#include <algorithm>
#include <vector>

namespace sluice::plan {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

// Returns `value` as text for messages, of at most 60 bytes.
std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Returns the error for bytes that are not JSON from `byte` (counted from 1)
// on. Names NaN and infinities, which Python writes.
std::string NotJson(std::string_view bytes, size_t byte) {
  const std::string_view rest =
      bytes.substr(std::min(std::max<size_t>(byte, 1) - 1, bytes.size()));
  for (const std::string_view word : {"NaN", "Infinity"}) {
    if (!rest.starts_with(word)) continue;
    return fmt::format(
        "{} at byte {}, which no JSON number can be: write a number or null",
        word, byte);
  }
  return fmt::format("not JSON: stopped at byte {} of {}", byte, bytes.size());
}

}  // namespace

json ParseChecked(std::string_view bytes, size_t max_bytes,
                  absl::Status* status) {
  const auto refuse = [status](const std::string& why) {
    if (status->ok()) *status = absl::InvalidArgumentError(why);
  };
  if (bytes.size() > max_bytes) {
    refuse(fmt::format("{} bytes; the limit is {}", bytes.size(), max_bytes));
    return {};
  }
  // Refuses repeated keys: nlohmann would silently use the last value.
  std::vector<std::set<std::string>> open;  // the keys of every open object
  const auto guard = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) {
      refuse(fmt::format("nested deeper than {} levels", kMaxDepth));
    }
    if (!status->ok()) return false;  // drops the rest of the document
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key &&
        !open.back().insert(value.get<std::string>()).second) {
      refuse(fmt::format("key {} occurs twice in one object", Shown(value)));
    }
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(bytes, guard);
  } catch (const json::parse_error& e) {
    refuse(NotJson(bytes, e.byte));
  } catch (const json::exception& e) {  // only out_of_range is possible here
    const std::string what = e.what();  // "… number overflow parsing '1e999'"
    refuse(fmt::format("{:.40} is too large for a double",
                       what.substr(std::min(what.find('\''), what.size()))));
  }
  if (!parsed.is_object()) refuse("not a JSON object");
  return parsed;
}

int64_t FieldReader::Int(const char* key, int64_t low, int64_t high) {
  const json* value = Find(key);
  return value == nullptr ? low : CheckInt(*value, key, low, high);
}

double FieldReader::Number(const char* key, double low, double high) {
  const json* value = Find(key, &json::is_number, "a number");
  if (value == nullptr) return low;
  const double number = value->get<double>();
  if (number >= low && number <= high) return number;
  Refuse(key, fmt::format("{} is not between {} and {}", number, low, high));
  return low;
}

bool FieldReader::Flag(const char* key) {
  const json* value = Find(key, &json::is_boolean, "true or false");
  return value != nullptr && value->get<bool>();
}

std::string FieldReader::Text(const char* key, size_t max_bytes) {
  const json* value = Find(key);
  return value == nullptr ? "" : CheckText(*value, key, max_bytes);
}

std::string FieldReader::SelfText(size_t max_bytes) {
  return ok() ? CheckText(json_, "", max_bytes) : "";
}

std::string FieldReader::CheckText(const json& value, const std::string& key,
                                   size_t max_bytes) {
  const auto* text = value.get_ptr<const std::string*>();
  if (text == nullptr) {
    Refuse(key, fmt::format("{} is not a text", Shown(value)));
  } else if (text->size() > max_bytes) {
    Refuse(key, fmt::format("{} bytes of text; the limit is {}", text->size(),
                            max_bytes));
  } else if (std::ranges::any_of(*text,
                                 [](unsigned char c) { return c < 0x20; })) {
    Refuse(key, fmt::format("{} has a control character", Shown(value)));
  }
  return ok() ? *text : "";
}

std::string FieldReader::Choice(
    const char* key, std::initializer_list<std::string_view> choices) {
  std::string text = Text(key, 64);
  if (!ok()) return text;
  std::string known;
  for (const std::string_view choice : choices) {
    if (text == choice) return text;
    known += fmt::format("{}'{}'", known.empty() ? "" : ", ", choice);
  }
  Refuse(key, fmt::format("'{}' is none of {}", text, known));
  return text;
}

FieldReader FieldReader::Object(const char* key) {
  static const json* const kEmpty = new json(json::object());
  const json* value = Find(key, &json::is_object, "an object");
  return FieldReader(value == nullptr ? *kEmpty : *value, PathOf(key), status_);
}

int64_t FieldReader::Self(int64_t low, int64_t high) {
  return CheckInt(json_, "", low, high);
}

int64_t FieldReader::At(size_t i, const char* name, int64_t low, int64_t high) {
  return CheckInt(json_[i], name, low, high);
}

void FieldReader::Finish() {
  if (!ok() || !json_.is_object()) return;
  for (const auto& [key, value] : json_.items()) {
    if (!seen_.contains(key)) {
      return Refuse(Shown(json(key)), "unknown field");
    }
  }
}

void FieldReader::Refuse(const std::string& key, const std::string& complaint) {
  if (!ok()) return;
  *status_ =
      absl::InvalidArgumentError(fmt::format("{}: {}", PathOf(key), complaint));
}

const json* FieldReader::Find(const char* key) {
  if (!ok()) return nullptr;
  if (!json_.is_object()) {
    Refuse("", fmt::format("{} is not an object", Shown(json_)));
    return nullptr;
  }
  seen_.insert(key);
  const auto found = json_.find(key);
  if (found == json_.end()) {
    Refuse(key, "is missing");
    return nullptr;
  }
  return &*found;
}

const json* FieldReader::Find(const char* key,
                              bool (json::*is)() const noexcept,
                              const char* what) {
  const json* value = Find(key);
  if (value == nullptr || (value->*is)()) return value;
  Refuse(key, fmt::format("{} is not {}", Shown(*value), what));
  return nullptr;
}

std::string FieldReader::PathOf(const std::string& key) const {
  if (path_.empty()) return key;
  return key.empty() ? path_ : path_ + "." + key;
}

int64_t FieldReader::CheckInt(const json& value, const std::string& key,
                              int64_t low, int64_t high) {
  if (!value.is_number_integer()) {
    Refuse(key, fmt::format("{} is not a whole number", Shown(value)));
    return low;
  }
  const bool too_big = value.is_number_unsigned() &&
                       value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_big ? INT64_MAX : value.get<int64_t>();
  if (too_big || number < low || number > high) {
    Refuse(key,
           fmt::format("{} is not between {} and {}", Shown(value), low, high));
    return low;
  }
  return number;
}

}  // namespace sluice::plan
