#include "daemon/state/fields.h"

#include <bit>

#include "google/protobuf/wire_format_lite.h"

namespace sluice::daemon {
namespace fields {

// Avoids the 128-bit division of absl's conversions, because a session's row
// holds several times.
TimeParts ToParts(absl::Time time) {
  if (time == absl::InfiniteFuture()) return {1, -1};
  if (time == absl::InfinitePast()) return {-1, -1};
  const int64_t seconds = absl::ToUnixSeconds(time);  // rounded down
  absl::Duration rest = time - absl::FromUnixSeconds(seconds);
  const int64_t nanos = absl::ToInt64Nanoseconds(rest);
  rest -= absl::Nanoseconds(nanos);
  int64_t quarters = 4 * nanos;
  static const absl::Duration kQuarter = absl::Nanoseconds(1) / 4;
  for (; rest > absl::ZeroDuration(); rest -= kQuarter) ++quarters;
  return {seconds, quarters};
}

absl::Time FromParts(TimeParts parts) {
  const auto [seconds, quarters] = parts;
  if (quarters == -1) {
    return seconds > 0 ? absl::InfiniteFuture() : absl::InfinitePast();
  }
  return absl::UnixEpoch() + absl::Seconds(seconds) +
         absl::Nanoseconds(1) / 4 * quarters;
}

}  // namespace fields

void FieldWriter::Varint(uint64_t number) {
  uint8_t bytes[10];
  const uint8_t* const end =
      google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(number,
                                                                    bytes);
  to_->append(reinterpret_cast<const char*>(bytes),
              static_cast<size_t>(end - bytes));
}

void FieldWriter::SetSize(size_t at) {
  const size_t size = to_->size() - at - 1;
  if (size < 0x80) {
    (*to_)[at] = static_cast<char>(size);
    return;
  }
  std::string number;
  FieldWriter(&number, objects_).Varint(size);
  to_->replace(at, 1, number);
}

void FieldWriter::Fixed(double value) {
  uint8_t bytes[8];
  google::protobuf::io::CodedOutputStream::WriteLittleEndian64ToArray(
      std::bit_cast<uint64_t>(value), bytes);
  to_->append(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

bool FieldReader::AtEnd() {
  const void* data = nullptr;
  int size = 0;
  return tag_ == 0 && !input_.GetDirectBufferPointer(&data, &size);
}

bool FieldReader::Seek(int number, uint32_t wire_type) {
  using google::protobuf::internal::WireFormatLite;
  while (ok_) {
    if (tag_ == 0 && (AtEnd() || (tag_ = input_.ReadTag()) == 0)) {
      ok_ = AtEnd();
      return false;
    }
    const int found = WireFormatLite::GetTagFieldNumber(tag_);
    if (found > number) return false;
    const uint32_t tag = std::exchange(tag_, 0);
    if (found == number) {
      ok_ = WireFormatLite::GetTagWireType(tag) ==
            static_cast<WireFormatLite::WireType>(wire_type);
      return ok_;
    }
    ok_ = WireFormatLite::SkipField(&input_, tag);
  }
  return false;
}

uint64_t FieldReader::Varint() {
  uint64_t number = 0;
  ok_ = ok_ && input_.ReadVarint64(&number);
  return number;
}

double FieldReader::Fixed() {
  uint64_t bits = 0;
  ok_ = ok_ && input_.ReadLittleEndian64(&bits);
  return std::bit_cast<double>(bits);
}

std::string FieldReader::Text() {
  std::string text;
  uint32_t size = 0;
  ok_ = ok_ && input_.ReadVarint32(&size) && size <= INT32_MAX &&
        input_.ReadString(&text, static_cast<int>(size));
  return text;
}

}  // namespace sluice::daemon
