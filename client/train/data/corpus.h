// Training text as one long row of token ids, which is never loaded whole.
//
// A text file or folder is bytes, one token per byte; a folder is its text
// files in sorted order, joined. A `.bin` has uint16 or uint32 ids; the width
// comes from llm.c's header or from a Megatron `.idx` in the same folder, else
// from --token-bytes.
// Errors: InvalidArgument / NotFound, one line: what, value, what to do.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

class Corpus {
 public:
  struct Options {
    std::string path;    // empty: the torch package's .py files
    std::string suffix;  // for files of a folder; empty: every text file
    int token_bytes = 0;
    int64_t vocab = 256;
  };
  static absl::StatusOr<std::unique_ptr<Corpus>> Open(const Options& options);

  int64_t tokens() const { return total_; }
  // Reads tokens [first, first + out.size()). OutOfRange: beyond the end.
  // InvalidArgument: an id exceeds the vocabulary.
  absl::Status Read(int64_t first, std::span<int64_t> out);
  // Covers the text's length and 64 pieces spread over the text (all of a short
  // one), so it misses a change between the pieces that keeps the length.
  absl::StatusOr<std::string> Fingerprint();

 private:
  struct File {
    std::string path;
    int64_t first = 0;  // of its first token in the corpus
    int64_t tokens = 0;
    int64_t skip = 0;  // bytes before its first token
  };
  explicit Corpus(const Options& options) : options_(options) {}
  absl::Status AddFolder(const std::string& path);
  void AddText(const std::string& path, int64_t bytes);
  absl::Status AddIds(const std::string& path, int64_t bytes);
  absl::Status OpenFile(size_t index);
  absl::Status ReadFile(size_t index, int64_t first, std::span<int64_t> out);

  Options options_;
  int token_bytes_ = 1;
  int64_t total_ = 0;
  std::vector<File> files_;
  size_t open_index_ = SIZE_MAX;
  UniqueFd open_;
  std::vector<unsigned char> bytes_;  // of one read, reused
};

}  // namespace sluice::train
