// Splits an input into packets, and passes each over a real socket, with
// descriptors, to wire::Receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::fuzz {

// Consumes an input from its front. Returns 0 and empty pieces after its end.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t Byte();
  // Reads a length of two bytes, and then as many bytes.
  std::string_view Piece();
  std::string_view Rest() { return bytes_; }

 private:
  std::string_view bytes_;
};

class PacketPipe {
 public:
  PacketPipe();

  // Sends `bytes` with `fds` sealed memfds and returns the received message.
  // Checks that each descriptor is in the message or was discarded, and that a
  // complaint is one line.
  absl::StatusOr<std::optional<wire::Message>> Pass(std::string_view bytes,
                                                    size_t fds);

 private:
  UniqueFd from_, to_, memfd_;
};

}  // namespace sluice::fuzz
