// The safetensors format: u64 header length, JSON header {"name": {"dtype",
// "shape", "data_offsets"}, "__metadata__"}, raw little-endian tensors. Writing
// is sequential; reading takes any part of any tensor. A header is checked
// completely before it is used: types, shapes against offsets, offsets against
// the file's size.
// Errors: InvalidArgument names the file and what is broken in it.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

enum class TensorType { kF32, kBF16, kU8 };

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

class SafetensorsWriter {
 public:
  // Creates the file. `label` tells readers what the file is.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<TensorInfo> tensors,
      const std::string& label = "");
  // Appends the next `bytes` of the tensors, which follow in Create's order.
  absl::Status Append(const void* data, int64_t bytes);
  // Flushes to the disk. Returns an error if bytes are missing.
  absl::Status Close();

 private:
  SafetensorsWriter() = default;
  std::string path_;
  UniqueFd fd_;
  int64_t expected_ = 0;
  int64_t written_ = 0;
};

class SafetensorsReader {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(
      const std::string& path);
  const std::string& label() const { return label_; }  // empty: none
  // InvalidArgument: there is no such tensor of this type and shape.
  absl::Status Expect(const TensorInfo& wanted) const;
  // Reads bytes [offset, offset + bytes) of the tensor's data.
  absl::Status Read(const std::string& name, int64_t offset, void* data,
                    int64_t bytes) const;

 private:
  struct Place {
    TensorInfo info;
    int64_t begin = 0;  // offset in the file
  };
  SafetensorsReader() = default;
  absl::Status ParseHeader(const std::string& header, int64_t data_begin,
                           int64_t data_bytes);
  absl::StatusOr<const Place*> Find(const std::string& name) const;

  std::string path_;
  std::string label_;
  UniqueFd fd_;
  std::map<std::string, Place> places_;
};

}  // namespace sluice::train
