// Reads one table of a TOML file, strictly.
//
// Thread safety: one thread.
#pragma once

#include <fmt/format.h>

// Without this, toml++ 3.3 aborts at "[[[x" instead of reporting the fault.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::daemon {

// Each known key has a reader. Every other key is an error; its message lists
// the known keys.
class TableReader {
 public:
  using Reader = std::function<absl::Status(const toml::node&)>;

  TableReader(std::string path, std::string name)
      : path_(std::move(path)), name_(std::move(name)) {}

  TableReader& Key(std::string key, Reader reader) {
    readers_[std::move(key)] = std::move(reader);
    return *this;
  }

  absl::Status Read(const toml::node& node) const {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Error(node, name_ + " must be a table");
    for (const auto& [key, value] : *table) {
      const std::string text(key.str());
      const auto reader = readers_.find(text);
      if (reader == readers_.end()) return Unknown(value, text);
      key_ = "'" + text + "' ";
      SLUICE_RETURN_IF_ERROR(reader->second(value));
      key_.clear();
    }
    return absl::OkStatus();
  }

  // The error names the key that is being read, if any.
  absl::Status Error(const toml::node& at, std::string_view what) const {
    return absl::InvalidArgumentError(
        fmt::format("{}:{}: {}{}", path_, at.source().begin.line, key_, what));
  }

  template <typename To>  // std::string, or an optional one
  Reader Text(To* to) const {
    return [this, to](const toml::node& node) {
      const auto text = node.value_exact<std::string>();
      if (!text) return Error(node, "must be a string in quotes");
      *to = *text;
      return absl::OkStatus();
    };
  }
  template <typename To>  // int, or an optional of a wider type
  Reader Whole(To* to, int least, int most) const {
    return [=, this](const toml::node& node) {
      const auto number = node.value_exact<int64_t>();
      if (!number || *number < least || *number > most) {
        return Error(node, fmt::format("must be a whole number from {} to {}",
                                       least, most));
      }
      *to = static_cast<int>(*number);
      return absl::OkStatus();
    };
  }
  Reader Number(double* to) const {
    return [=, this](const toml::node& node) {
      const auto number = node.value<double>();
      if (!number || !std::isfinite(*number) || *number < 0) {
        return Error(node, "must be a number, 0 or more");
      }
      *to = *number;
      return absl::OkStatus();
    };
  }
  template <typename To>  // Bytes, or optional ones
  Reader Size(To* to) const {
    return [=, this](const toml::node& node) -> absl::Status {
      constexpr const char* kNeeded =
          "must be a size above 0 in quotes, such as \"36MiB\"";
      if (const auto number = node.value_exact<int64_t>();
          number && *number > 0) {
        return Error(node, fmt::format("{}, or \"{}B\" for {} bytes", kNeeded,
                                       *number, *number));
      }
      const auto text = node.value_exact<std::string>();
      if (!text) return Error(node, kNeeded);
      const auto size = ParseBytes(*text);
      if (!size.ok()) return Error(node, std::string(size.status().message()));
      if (*size <= Bytes(0)) return Error(node, kNeeded);
      *to = *size;
      return absl::OkStatus();
    };
  }
  template <typename T>
  Reader Choice(T* to, std::map<std::string, T> choices) const {
    return [=, this](const toml::node& node) {
      const auto text = node.value_exact<std::string>();
      const auto found = text ? choices.find(*text) : choices.end();
      if (found == choices.end()) {
        std::string names;
        for (const auto& [name, value] : choices) {
          names += (names.empty() ? "\"" : ", \"") + name + "\"";
        }
        return Error(node, "must be one of " + names);
      }
      *to = found->second;
      return absl::OkStatus();
    };
  }
  Reader Texts(std::vector<std::string>* to) const {
    return List([=, this](const toml::node& node) {
      return Text(&to->emplace_back())(node);
    });
  }
  Reader List(Reader each) const {
    return [=, this](const toml::node& node) -> absl::Status {
      const toml::array* list = node.as_array();
      if (list == nullptr) return Error(node, "must be a list");
      for (const toml::node& item : *list) SLUICE_RETURN_IF_ERROR(each(item));
      return absl::OkStatus();
    };
  }

 private:
  absl::Status Unknown(const toml::node& at, const std::string& key) const {
    std::string known;
    for (const auto& [name, reader] : readers_) {
      known += (known.empty() ? "" : ", ") + name;
    }
    return Error(at, fmt::format("unknown key '{}' in {}; known: {}", key,
                                 name_, known));
  }

  const std::string path_;
  const std::string name_;
  std::map<std::string, Reader> readers_;
  mutable std::string key_;
};

}  // namespace sluice::daemon
