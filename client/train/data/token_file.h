// Reads the layout of a `.bin` file of token ids.
//
// Known layouts: llm.c's header (magic 20240520 version 1: uint16; 20240801
// version 7: uint32), a Megatron dataset (raw ids; its `.idx` names their
// type), and raw ids with a width that the user gives.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::train {

struct TokenFileLayout {
  int token_bytes = 0;
  int64_t skip_bytes = 0;
  int64_t tokens = 0;
};

// With `token_bytes` 0 the width is detected. InvalidArgument: the width is
// unknown, or the header contradicts the file's size.
absl::StatusOr<TokenFileLayout> ReadTokenFileLayout(const std::string& path,
                                                    int64_t file_bytes,
                                                    int token_bytes);

// Decodes a little-endian token of `width` bytes (1, 2 or 4).
int64_t DecodeToken(const unsigned char* bytes, int width);

}  // namespace sluice::train
