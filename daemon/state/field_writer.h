// Writes plain data as bytes (fields.h).
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/state/field_types.h"
#include "daemon/state/objects.h"
#include "proto/base/status.h"

namespace sluice::daemon {

class FieldWriter {
 public:
  // `objects` may be null if the written data names no objects.
  FieldWriter(std::string* to, Objects* objects) : to_(to), objects_(objects) {}

  template <typename T>
  void operator()(int number, const T& value) {
    using fields::kIsA;
    if constexpr (kIsA<std::optional, T>) {
      if (value.has_value()) (*this)(number, *value);
    } else {
      Varint(static_cast<uint64_t>(number) << 3 | fields::kWireType<T>);
      Element(value);
    }
  }

  // Writes a value without a field number: a key, or a whole row.
  template <typename T>
  void Element(const T& value);
  // Writes the size of what `write` appends, and then these bytes. Writes in
  // place because each request changes some rows, and a row has dozens of such
  // parts, most of them shorter than 128 bytes.
  template <typename Write>
  void Sized(Write write) {
    const size_t at = to_->size();
    to_->push_back(0);
    write();
    SetSize(at);
  }

 private:
  void Varint(uint64_t number);
  // Writes, at `at`, the size of the bytes that follow.
  void SetSize(size_t at);
  void Fixed(double value);
  template <typename T>
  void Body(const T& value);

  std::string* to_;
  Objects* objects_;
};

template <typename T>
void FieldWriter::Element(const T& value) {
  using fields::kIsA;
  if constexpr (fields::Number<T>) {
    Varint(fields::ToNumber(value));
  } else if constexpr (std::floating_point<T>) {
    Fixed(value);
  } else if constexpr (kIsA<std::shared_ptr, T>) {
    SLUICE_CHECK(objects_ != nullptr);
    Varint(value == nullptr ? 0 : objects_->Number(value, [&] {
      std::string bytes;
      FieldWriter(&bytes, objects_).Element(*value);
      return bytes;
    }));
  } else if constexpr (std::same_as<T, std::string>) {
    Varint(value.size());
    *to_ += value;
  } else {
    Sized([&] { Body(value); });
  }
}

template <typename T>
void FieldWriter::Body(const T& value) {
  using fields::kIsA;
  if constexpr (fields::List<T> || fields::kIsArray<T> || kIsA<std::map, T>) {
    for (const auto& each : value) {
      if constexpr (kIsA<std::map, T>) {
        Element(each.first);
        Element(each.second);
      } else {
        Element(each);
      }
    }
  } else if constexpr (kIsA<std::pair, T>) {
    Element(value.first);
    Element(value.second);
  } else if constexpr (kIsA<std::optional, T>) {
    if (value.has_value()) Element(*value);
  } else if constexpr (kIsA<std::variant, T>) {
    std::visit(
        [&](const auto& each) {
          (*this)(static_cast<int>(value.index()) + 1, each);
        },
        value);
  } else if constexpr (std::same_as<T, absl::Time>) {
    const fields::TimeParts parts = fields::ToParts(value);
    Element(parts.seconds);
    Element(parts.quarters);
  } else if constexpr (std::same_as<T, absl::Duration>) {
    Element(absl::UnixEpoch() + value);
  } else if constexpr (std::same_as<T, absl::Status>) {
    (*this)(1, static_cast<int>(value.code()));
    (*this)(2, std::string(value.message()));
    std::map<std::string, std::string> payloads;
    value.ForEachPayload([&](auto url, const absl::Cord& payload) {
      payloads[std::string(url)] = std::string(payload);
    });
    (*this)(3, payloads);
  } else {
    Fields(*this, value);
  }
}

}  // namespace sluice::daemon
