#include "daemon/state/field_reader.h"

#include <bit>

#include "google/protobuf/wire_format_lite.h"

namespace sluice::daemon {

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
