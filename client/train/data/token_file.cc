#include "client/train/data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "client/train/launch/outcome.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {
namespace {

constexpr int64_t kLlmcHeaderBytes = 256 * 4;

// Returns the first `count` bytes of a file, or fewer if it is shorter.
std::string Head(const std::string& path, size_t count) {
  // Opening a pipe would wait for its writer.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string bytes(count, '\0');
  const ssize_t n = fd ? read(fd.get(), bytes.data(), count) : 0;
  bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return bytes;
}

int64_t Word(const std::string& bytes, size_t index) {
  return DecodeToken(
      reinterpret_cast<const unsigned char*>(bytes.data()) + 4 * index, 4);
}

// Returns the bytes per token; 0 if `head` is no header of llm.c.
int LlmcWidth(const std::string& head) {
  if (head.size() < kLlmcHeaderBytes) return 0;
  if (Word(head, 0) == 20240520 && Word(head, 1) == 1) return 2;
  if (Word(head, 0) == 20240801 && Word(head, 1) == 7) return 4;
  return 0;
}

// Returns the bytes per token by the dtype code in Megatron's index (8 is
// uint16, 4 is int32); 0 if there is no index.
int MegatronWidth(const std::string& path) {
  const std::string index =
      path.substr(0, path.size() - std::strlen(".bin")) + ".idx";
  const std::string head = Head(index, 18);
  if (head.size() < 18 || !head.starts_with("MMIDIDX")) return 0;
  if (head[17] == 8) return 2;
  if (head[17] == 4) return 4;
  return 0;
}

}  // namespace

int64_t DecodeToken(const unsigned char* bytes, int width) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, static_cast<size_t>(width));
  return value;
}

absl::StatusOr<TokenFileLayout> ReadTokenFileLayout(const std::string& path,
                                                    int64_t file_bytes,
                                                    int token_bytes) {
  const std::string head = Head(path, kLlmcHeaderBytes);
  TokenFileLayout layout;
  if (const int width = LlmcWidth(head); width != 0) {
    layout = {width, kLlmcHeaderBytes, Word(head, 2)};
    if (file_bytes != kLlmcHeaderBytes + layout.tokens * width) {
      return BadInput(fmt::format(
          "--data {}: its header says {} tokens of {} bytes, the file has {} "
          "bytes; it is cut short or broken",
          path, layout.tokens, width, file_bytes));
    }
    return layout;
  }
  const int width = token_bytes != 0 ? token_bytes : MegatronWidth(path);
  if (width == 0) {
    return BadInput(fmt::format(
        "--data {}: no llm.c header and no .idx beside it; say --token-bytes "
        "2 or 4",
        path));
  }
  if (file_bytes % width != 0) {
    return BadInput(
        fmt::format("--data {}: {} bytes are not a whole number of {}-byte ids",
                    path, file_bytes, width));
  }
  return TokenFileLayout{width, 0, file_bytes / width};
}

}  // namespace sluice::train
