#include "kernels/device/sim/memory_name.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

constexpr absl::string_view kFirst = "sluice-sim";

}  // namespace

std::string ToText(const MemoryName& name) {
  return fmt::format("{}:{}:{:x}:{}{}:{}", std::string(kFirst), name.node,
                     name.maker,
                     name.where.kind == Placement::Kind::kGpu ? "gpu" : "host",
                     name.where.ordinal, name.size.count());
}

std::optional<MemoryName> ReadMemoryName(std::string_view text) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ':');
  if (parts.size() != 5 || parts[0] != kFirst) return std::nullopt;
  MemoryName name;
  name.node = std::string(parts[1]);
  absl::string_view place = parts[3];
  name.where.kind = absl::ConsumePrefix(&place, "gpu") ? Placement::Kind::kGpu
                                                       : Placement::Kind::kHost;
  if (name.where.kind == Placement::Kind::kHost &&
      !absl::ConsumePrefix(&place, "host")) {
    return std::nullopt;
  }
  int64_t size = 0;
  if (!absl::SimpleHexAtoi(parts[2], &name.maker) ||
      !absl::SimpleAtoi(place, &name.where.ordinal) ||
      !absl::SimpleAtoi(parts[4], &size) || size <= 0) {
    return std::nullopt;
  }
  name.size = Bytes(size);
  return name;
}

std::optional<MemoryName> ReadShownName(std::string_view text) {
  absl::string_view name(text.data(), text.size());
  if (!absl::ConsumePrefix(&name, "/memfd:") ||
      !absl::ConsumeSuffix(&name, " (deleted)")) {
    return std::nullopt;
  }
  return ReadMemoryName({name.data(), name.size()});
}

std::optional<MemoryName> ReadLinkedName(const std::string& link) {
  std::array<char, 512> text;
  const ssize_t n = readlink(link.c_str(), text.data(), text.size());
  if (n <= 0) return std::nullopt;
  return ReadShownName({text.data(), static_cast<size_t>(n)});
}

absl::StatusOr<std::string> NodeName(const std::string& directory) {
  struct statx folder;
  if (statx(AT_FDCWD, directory.c_str(), 0, STATX_INO | STATX_BTIME, &folder) !=
      0) {
    return ErrnoStatus(errno, "look at " + directory);
  }
  const int64_t born =
      (folder.stx_mask & STATX_BTIME) == 0
          ? 0
          : folder.stx_btime.tv_sec * 1'000'000'000 + folder.stx_btime.tv_nsec;
  return fmt::format("{:x}.{:x}-{:x}-{:x}", folder.stx_dev_major,
                     folder.stx_dev_minor, folder.stx_ino, born);
}

}  // namespace sluice::device
