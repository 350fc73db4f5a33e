// Reads plain data from bytes (fields.h). A missing field keeps its default.
// ok() returns whether all bytes were valid.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/state/field_types.h"
#include "daemon/state/objects.h"
#include "google/protobuf/io/coded_stream.h"

namespace sluice::daemon {

class FieldReader {
 public:
  FieldReader(std::string_view bytes, Objects* objects)
      : input_(reinterpret_cast<const uint8_t*>(bytes.data()),
               static_cast<int>(bytes.size())),
        objects_(objects) {}

  template <typename T>
  void operator()(int number, T& value) {
    if constexpr (fields::kIsA<std::optional, T>) {
      if (Seek(number, fields::kWireType<typename T::value_type>)) {
        Element(value.emplace());
      }
    } else if (Seek(number, fields::kWireType<T>)) {
      Element(value);
    }
  }

  template <typename T>
  void Element(T& value);

  // Skips the remaining bytes.
  void Skip() {
    tag_ = 0;
    input_.Skip(INT32_MAX);
  }

  // Returns false if the bytes were cut off or invalid.
  bool ok() const { return ok_; }
  // Returns whether all bytes were valid and were read.
  bool Done() { return ok_ && AtEnd(); }

 private:
  // Skips fields with smaller numbers; returns whether the next field is this
  // one.
  bool Seek(int number, uint32_t wire_type);
  bool AtEnd();
  uint64_t Varint();
  double Fixed();
  std::string Text();
  template <typename T>
  void Body(T& value);
  template <size_t index, typename... Types>
  void Alternative(std::variant<Types...>& value);

  google::protobuf::io::CodedInputStream input_;
  Objects* objects_;
  uint32_t tag_ = 0;  // read, but not its value yet; 0: none
  bool ok_ = true;
};

template <typename T>
void FieldReader::Element(T& value) {
  using fields::kIsA;
  if constexpr (fields::Number<T>) {
    fields::FromNumber(Varint(), value);
  } else if constexpr (std::floating_point<T>) {
    value = Fixed();
  } else if constexpr (kIsA<std::shared_ptr, T>) {
    const uint64_t number = Varint();
    using Object = std::remove_const_t<typename T::element_type>;
    value = objects_->Find<Object>(number, [&](std::string_view bytes) {
      auto object = std::make_shared<Object>();
      FieldReader reader(bytes, objects_);
      reader.Element(*object);
      return reader.Done() ? object : nullptr;
    });
    if (number != 0 && value == nullptr) ok_ = false;
  } else if constexpr (std::same_as<T, std::string>) {
    value = Text();
  } else {
    const std::string body = Text();
    if (!ok_) return;
    FieldReader reader(body, objects_);
    reader.Body(value);
    ok_ = reader.ok();
  }
}

template <size_t index, typename... Types>
void FieldReader::Alternative(std::variant<Types...>& value) {
  if constexpr (index < sizeof...(Types)) {
    using Each = std::variant_alternative_t<index, std::variant<Types...>>;
    if (!Seek(static_cast<int>(index) + 1, fields::kWireType<Each>)) {
      return Alternative<index + 1>(value);
    }
    Element(value.template emplace<index>());
  } else {
    ok_ = false;
  }
}

template <typename T>
void FieldReader::Body(T& value) {
  using fields::kIsA;
  if constexpr (kIsA<std::map, T>) {
    value.clear();
    while (ok_ && !AtEnd()) {
      typename T::key_type key{};
      Element(key);
      Element(value[std::move(key)]);
    }
  } else if constexpr (fields::List<T>) {
    value.clear();
    while (ok_ && !AtEnd()) {
      typename T::value_type each{};
      Element(each);
      value.insert(value.end(), std::move(each));
    }
  } else if constexpr (fields::kIsArray<T>) {
    for (auto& each : value) Element(each);
  } else if constexpr (kIsA<std::pair, T>) {
    Element(value.first);
    Element(value.second);
  } else if constexpr (kIsA<std::optional, T>) {
    if (!AtEnd()) Element(value.emplace());
  } else if constexpr (kIsA<std::variant, T>) {
    Alternative<0>(value);
  } else if constexpr (std::same_as<T, absl::Time>) {
    fields::TimeParts parts;
    Element(parts.seconds);
    Element(parts.quarters);
    value = fields::FromParts(parts);
  } else if constexpr (std::same_as<T, absl::Duration>) {
    absl::Time since_epoch;
    Element(since_epoch);
    value = since_epoch - absl::UnixEpoch();
  } else if constexpr (std::same_as<T, absl::Status>) {
    int code = 0;
    std::string message;
    std::map<std::string, std::string> payloads;
    (*this)(1, code);
    (*this)(2, message);
    (*this)(3, payloads);
    value = absl::Status(static_cast<absl::StatusCode>(code), message);
    for (const auto& [url, payload] : payloads) {
      value.SetPayload(url, absl::Cord(payload));
    }
  } else {
    Fields(*this, value);
  }
}

}  // namespace sluice::daemon
