#include "client/train/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/base/whole_io.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

// The limit of the reference implementation.
constexpr int64_t kMaxHeader = 100'000'000;

// Indexed by TensorType.
constexpr struct {
  const char* name;
  int64_t bytes;
} kTypes[] = {{"F32", 4}, {"BF16", 2}, {"U8", 1}};

const char* TypeName(TensorType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

std::string Describe(const TensorInfo& info) {
  return fmt::format("{} [{}]", TypeName(info.type),
                     fmt::join(info.shape, ", "));
}

std::string_view BytesOf(const void* data, int64_t bytes) {
  return {static_cast<const char*>(data), static_cast<size_t>(bytes)};
}

std::string MakeHeader(const std::vector<TensorInfo>& tensors,
                       const std::string& label) {
  Json json = {{"__metadata__", {{"format", "pt"}}}};
  if (!label.empty()) json["__metadata__"]["label"] = label;
  int64_t offset = 0;
  for (const TensorInfo& t : tensors) {
    json[t.name] = {{"dtype", TypeName(t.type)},
                    {"shape", t.shape},
                    {"data_offsets", {offset, offset + t.bytes()}}};
    offset += t.bytes();
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
  return text;
}

// Parses shape, type and offsets of one entry; nullopt if anything is wrong.
std::optional<std::pair<TensorInfo, int64_t>> ParseEntry(
    const std::string& name, const Json& json, int64_t data_bytes) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return std::nullopt;
  }
  TensorInfo info{name, TensorType::kF32, {}};
  const auto* const type = std::ranges::find_if(
      kTypes, [&](const auto& t) { return json["dtype"] == t.name; });
  if (type == std::end(kTypes)) return std::nullopt;
  info.type = static_cast<TensorType>(type - kTypes);
  const Json& shape = json["shape"];
  const Json& range = json["data_offsets"];
  if (!shape.is_array() || !range.is_array() || range.size() != 2 ||
      !range[0].is_number_unsigned() || !range[1].is_number_unsigned()) {
    return std::nullopt;
  }
  int64_t elements = 1;
  for (const Json& n : shape) {
    if (!n.is_number_unsigned()) return std::nullopt;
    const int64_t size = info.shape.emplace_back(n.get<int64_t>());
    // Bounded by the file's size, so the product cannot overflow.
    if (size < 0 || size > data_bytes / std::max<int64_t>(elements, 1)) {
      return std::nullopt;
    }
    elements *= size;
  }
  const uint64_t begin = range[0].get<uint64_t>();
  const uint64_t end = range[1].get<uint64_t>();
  if (begin > end || end > static_cast<uint64_t>(data_bytes) ||
      static_cast<int64_t>(end - begin) != info.bytes()) {
    return std::nullopt;
  }
  return std::make_pair(info, static_cast<int64_t>(begin));
}

}  // namespace

int64_t TensorInfo::bytes() const {
  int64_t n = kTypes[static_cast<size_t>(type)].bytes;
  for (const int64_t size : shape) n *= size;
  return n;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorInfo> tensors,
    const std::string& label) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  writer->path_ = path;
  writer->fd_ = UniqueFd(
      open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
  if (!writer->fd_) return ErrnoStatus(errno, "create " + path);
  for (const TensorInfo& t : tensors) writer->expected_ += t.bytes();
  const std::string header = MakeHeader(tensors, label);
  const uint64_t size = header.size();
  const int fd = writer->fd_.get();
  SLUICE_RETURN_IF_ERROR(WriteAll(fd, BytesOf(&size, sizeof(size)), path));
  SLUICE_RETURN_IF_ERROR(WriteAll(fd, header, path));
  return writer;
}

absl::Status SafetensorsWriter::Append(const void* data, int64_t bytes) {
  written_ += bytes;
  return WriteAll(fd_.get(), BytesOf(data, bytes), path_);
}

absl::Status SafetensorsWriter::Close() {
  if (written_ != expected_) {
    return absl::InternalError(
        fmt::format("{}: {} bytes written, the header says {}", path_, written_,
                    expected_));
  }
  if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, "fsync " + path_);
  fd_.Reset();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader());
  reader->path_ = path;
  reader->fd_ = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader->fd_) return ErrnoStatus(errno, "open " + path);
  const int fd = reader->fd_.get();
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat " + path);
  uint64_t size = 0;
  const bool has_size = pread(fd, &size, sizeof(size), 0) == sizeof(size);
  if (!has_size || size > kMaxHeader ||
      static_cast<int64_t>(size) > info.st_size - 8) {
    return BadInput("{}: not a whole safetensors file ({} bytes, header of {})",
                    path, info.st_size, size);
  }
  std::string header(size, '\0');
  if (pread(fd, header.data(), size, 8) != static_cast<ssize_t>(size)) {
    return BadInput("{}: cannot read its header", path);
  }
  const int64_t begin = 8 + static_cast<int64_t>(size);
  SLUICE_RETURN_IF_ERROR(
      reader->ParseHeader(header, begin, info.st_size - begin));
  return reader;
}

absl::Status SafetensorsReader::ParseHeader(const std::string& header,
                                            int64_t data_begin,
                                            int64_t data_bytes) {
  const Json json = Json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return BadInput("{}: its header is not JSON", path_);
  }
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      const bool has = entry.is_object() && entry.contains("label") &&
                       entry["label"].is_string();
      if (has) label_ = entry["label"].get<std::string>();
      continue;
    }
    const auto parsed = ParseEntry(name, entry, data_bytes);
    if (!parsed.has_value()) {
      return BadInput(
          "{}: tensor '{}' does not agree with the file's {} bytes of data; "
          "the file is cut short or broken",
          path_, name, data_bytes);
    }
    places_[name] = {parsed->first, data_begin + parsed->second};
  }
  return absl::OkStatus();
}

absl::StatusOr<const SafetensorsReader::Place*> SafetensorsReader::Find(
    const std::string& name) const {
  const auto place = places_.find(name);
  if (place != places_.end()) return &place->second;
  return BadInput("{}: has no tensor '{}'", path_, name);
}

absl::Status SafetensorsReader::Expect(const TensorInfo& wanted) const {
  SLUICE_ASSIGN_OR_RETURN(const Place* const place, Find(wanted.name));
  const TensorInfo& found = place->info;
  if (found.type != wanted.type || found.shape != wanted.shape) {
    return BadInput(
        "{}: tensor '{}' is {}, this model has {}; give the flags of the run "
        "that wrote it",
        path_, wanted.name, Describe(found), Describe(wanted));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::Read(const std::string& name, int64_t offset,
                                     void* data, int64_t bytes) const {
  SLUICE_ASSIGN_OR_RETURN(const Place* const place, Find(name));
  const int64_t size = place->info.bytes();
  if (offset < 0 || bytes < 0 || offset + bytes > size) {
    return BadInput("{}: bytes {} to {} of '{}', which has {}", path_, offset,
                    offset + bytes, name, size);
  }
  char* at = static_cast<char*>(data);
  int64_t from = place->begin + offset;
  while (bytes > 0) {
    const ssize_t n = pread(fd_.get(), at, static_cast<size_t>(bytes), from);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "read " + path_);
    at += n;
    from += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

}  // namespace sluice::train
