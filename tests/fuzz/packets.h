// An input cut into packets, each sent over a real socket with descriptors
// beside it, and received as the other side does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::fuzz {

// Bytes, taken from the front; zeros and nothing when there are no more.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t Byte();
  // Two bytes that say how many, and so many.
  std::string_view Piece();
  std::string_view Rest() { return bytes_; }

 private:
  std::string_view bytes_;
};

class PacketPipe {
 public:
  PacketPipe();

  // What arrives of `bytes` with `fds` sealed memfds. It is checked that each
  // descriptor is in the message or was discarded, and that a complaint is one
  // line.
  absl::StatusOr<std::optional<wire::Message>> Pass(std::string_view bytes,
                                                    size_t fds);

 private:
  UniqueFd from_, to_, memfd_;
};

}  // namespace sluice::fuzz
