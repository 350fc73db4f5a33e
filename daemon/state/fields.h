// Encodes plain data by numbered fields, in protobuf's wire format. One list of
// fields per type serves for writing and reading:
//
//   void Fields(auto& ar, Is<Slice> auto& slice) {
//     ar(1, slice.id, slice.size);  // fields 1 and 2
//   }
//
// New fields are added at the end, and a number is never reused: a list that
// has a gap goes on with ar(NEXT, …). A reader skips fields that it does not
// know, and a missing field keeps its default, so that one version can read
// what another wrote.
//
// No list is needed for numbers, enums, ids, sizes, times, strings, optionals,
// variants, pairs and containers of these. A shared object is written once, and
// named by its number (`Objects`) wherever it is used.
//
// Thread safety: none; one owner.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/io/coded_stream.h"
#include "proto/base/ids.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::daemon {

template <typename T, typename Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

namespace fields {

template <template <typename...> typename Template, typename T>
inline constexpr bool kIsA = false;
template <template <typename...> typename Template, typename... Args>
inline constexpr bool kIsA<Template, Template<Args...>> = true;
template <typename T>
inline constexpr bool kIsArray = false;
template <typename T, size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;

template <typename T>
concept Number = std::integral<T> || std::is_enum_v<T> || kIsA<Id, T> ||
    std::same_as<T, Bytes>;
template <typename T>
concept List = kIsA<std::vector, T> || kIsA<std::set, T>;
template <typename T>
inline constexpr bool kIsSigned = std::is_signed_v<T> || std::same_as<T, Bytes>;
template <typename T>
requires std::is_enum_v<T>
inline constexpr bool kIsSigned<T> =
    std::is_signed_v<std::underlying_type_t<T>>;

// protobuf's wire types: a varint, 8 bytes, or a length and that many bytes.
template <typename T>
inline constexpr uint32_t kWireType = Number<T> || kIsA<std::shared_ptr, T> ? 0
                                      : std::floating_point<T>              ? 1
                                                                            : 2;

// Encodes a signed number so that small absolute values are short.
constexpr uint64_t ZigZag(int64_t n) {
  return (static_cast<uint64_t>(n) << 1) ^ static_cast<uint64_t>(n >> 63);
}
constexpr int64_t UnZigZag(uint64_t n) {
  return static_cast<int64_t>(n >> 1) ^ -static_cast<int64_t>(n & 1);
}

template <Number T>
uint64_t ToNumber(T value) {
  if constexpr (kIsA<Id, T>) {
    return value.value();
  } else if constexpr (std::same_as<T, Bytes>) {
    return ZigZag(value.count());
  } else if constexpr (kIsSigned<T>) {
    return ZigZag(static_cast<int64_t>(value));
  } else {
    return static_cast<uint64_t>(value);
  }
}

template <Number T>
T FromNumber(uint64_t number) {
  if constexpr (kIsSigned<T>) {
    return static_cast<T>(UnZigZag(number));
  } else {
    return static_cast<T>(number);
  }
}

// A time as seconds and quarters of nanoseconds, absl's own resolution, so that
// every time is read back exactly. If quarters are -1 the time is infinite, and
// seconds are its sign.
using TimeParts = std::pair<int64_t, int64_t>;
TimeParts ToParts(absl::Time time);
absl::Time FromParts(TimeParts parts);

}  // namespace fields

// Profiles and plans. They are immutable and shared, so each is written once,
// and rows name it by its number.
class Objects {
 public:
  // --- writing ---------------------------------------------------------------
  // Returns the object's number, from 1 on; a new object is queued to be
  // written. Keeps the object until Clear, so that its address is not reused.
  template <typename T, typename Encode>
  uint64_t Number(const std::shared_ptr<const T>& object, Encode encode) {
    const auto [at, is_new] =
        written_.try_emplace(object.get(), written_.size() + 1, object);
    if (is_new) new_.emplace_back(at->second.first, encode());
    return at->second.first;
  }
  // Returns the objects numbered since the last call, as bytes.
  std::vector<std::pair<uint64_t, std::string>> TakeNew() {
    return std::exchange(new_, {});
  }
  // Drops all objects; numbers start from 1 again.
  void Clear() { written_.clear(); }

  // --- reading ---------------------------------------------------------------
  void Add(uint64_t number, std::string bytes) {
    read_[number] = {std::move(bytes), nullptr};
  }
  // Returns the object with that number, decoded once; null if there is none,
  // or `decode` failed.
  template <typename T, typename Decode>
  std::shared_ptr<const T> Find(uint64_t number, Decode decode) {
    const auto found = read_.find(number);
    if (found == read_.end()) return nullptr;
    auto& [bytes, object] = found->second;
    if (object == nullptr) object = decode(bytes);
    return std::static_pointer_cast<const T>(object);
  }

 private:
  std::map<const void*, std::pair<uint64_t, std::shared_ptr<const void>>>
      written_;
  std::vector<std::pair<uint64_t, std::string>> new_;
  std::map<uint64_t, std::pair<std::string, std::shared_ptr<const void>>> read_;
};

class FieldWriter {
 public:
  // `objects` may be null if the written data names no objects.
  FieldWriter(std::string* to, Objects* objects) : to_(to), objects_(objects) {}

  // Writes fields with consecutive numbers, from `number` on.
  template <typename... T>
  void operator()(int number, const T&... values) {
    (Field(number++, values), ...);
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
  template <typename T>
  void Field(int number, const T& value) {
    if constexpr (fields::kIsA<std::optional, T>) {
      if (value.has_value()) Field(number, *value);
    } else {
      Varint(static_cast<uint64_t>(number) << 3 | fields::kWireType<T>);
      Element(value);
    }
  }
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
  if constexpr (fields::List<T> || fields::kIsArray<T>) {
    for (const auto& each : value) Element(each);
  } else if constexpr (kIsA<std::map, T>) {
    for (const auto& each : value) Body(each);
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
    Body(fields::ToParts(value));
  } else if constexpr (std::same_as<T, absl::Duration>) {
    Element(absl::UnixEpoch() + value);
  } else if constexpr (std::same_as<T, absl::Status>) {
    std::map<std::string, std::string> payloads;
    value.ForEachPayload([&](auto url, const absl::Cord& payload) {
      payloads[std::string(url)] = std::string(payload);
    });
    (*this)(1, static_cast<int>(value.code()), std::string(value.message()),
            payloads);
  } else {
    Fields(*this, value);
  }
}

class FieldReader {
 public:
  FieldReader(std::string_view bytes, Objects* objects)
      : input_(reinterpret_cast<const uint8_t*>(bytes.data()),
               static_cast<int>(bytes.size())),
        objects_(objects) {}

  template <typename... T>
  void operator()(int number, T&... values) {
    (Field(number++, values), ...);
  }

  template <typename T>
  void Element(T& value);

  // Returns false if the bytes were cut off or invalid.
  bool ok() const { return ok_; }
  // Returns whether all bytes were valid and were read.
  bool Done() { return ok_ && AtEnd(); }

 private:
  template <typename T>
  void Field(int number, T& value) {
    if constexpr (fields::kIsA<std::optional, T>) {
      if (Seek(number, fields::kWireType<typename T::value_type>)) {
        Element(value.emplace());
      }
    } else if (Seek(number, fields::kWireType<T>)) {
      Element(value);
    }
  }
  // Skips fields with smaller numbers; returns whether field `number` is next.
  bool Seek(int number, uint32_t wire_type);
  bool AtEnd();
  uint64_t Varint();
  double Fixed();
  std::string Text();
  template <typename T>
  void Body(T& value);

  google::protobuf::io::CodedInputStream input_;
  Objects* objects_;
  uint32_t tag_ = 0;  // was read, but its value was not; 0: none
  bool ok_ = true;
};

template <typename T>
void FieldReader::Element(T& value) {
  using fields::kIsA;
  if constexpr (fields::Number<T>) {
    value = fields::FromNumber<T>(Varint());
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
    const bool found = [&]<size_t... i>(std::index_sequence<i...>) {
      return (
          (Seek(i + 1, fields::kWireType<std::variant_alternative_t<i, T>>) &&
           (Element(value.template emplace<i>()), true)) ||
          ...);
    }
    (std::make_index_sequence<std::variant_size_v<T>>());
    ok_ = ok_ && found;
  } else if constexpr (std::same_as<T, absl::Time>) {
    fields::TimeParts parts;
    Body(parts);
    value = fields::FromParts(parts);
  } else if constexpr (std::same_as<T, absl::Duration>) {
    absl::Time since_epoch;
    Element(since_epoch);
    value = since_epoch - absl::UnixEpoch();
  } else if constexpr (std::same_as<T, absl::Status>) {
    int code = 0;
    std::string message;
    std::map<std::string, std::string> payloads;
    (*this)(1, code, message, payloads);
    value = absl::Status(static_cast<absl::StatusCode>(code), message);
    for (const auto& [url, payload] : payloads) {
      value.SetPayload(url, absl::Cord(payload));
    }
  } else {
    Fields(*this, value);
  }
}

}  // namespace sluice::daemon
