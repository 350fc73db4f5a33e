#include "daemon/state/field_writer.h"

#include <bit>

#include "google/protobuf/io/coded_stream.h"

namespace sluice::daemon {

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

}  // namespace sluice::daemon
