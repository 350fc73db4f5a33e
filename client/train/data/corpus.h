// Training text as one long row of token ids.
//
// A text file or folder is bytes, one token per byte; a folder is its text
// files, walked in sorted order and joined. A `.bin` holds uint16 or uint32
// ids: llm.c's header or a Megatron `.idx` beside it tells which, else
// --token-bytes. Nothing is loaded: Read preads what it is asked for, so a
// corpus costs no memory to speak of, however long.
//
// Errors: InvalidArgument / NotFound, one line: what, value, what to do.
// Thread safety: none needed, one reader.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

class Corpus {
 public:
  struct Options {
    std::string path;    // empty: DefaultCorpusPath(), its .py files
    std::string suffix;  // of a folder's files; empty: every text file
    int token_bytes = 0;
    int64_t vocab = 256;
  };
  static absl::StatusOr<std::unique_ptr<Corpus>> Open(const Options& options);

  int64_t tokens() const { return total_; }
  // Tokens [first, first + out.size()). OutOfRange beyond the end;
  // InvalidArgument when an id is not in the vocabulary.
  absl::Status Read(int64_t first, std::span<int64_t> out);
  // What tells one text from another, wherever it lies: of its length and of
  // 64 pieces spread over it (all of it where it is short). A change between
  // those that keeps the length is not seen.
  absl::StatusOr<std::string> Fingerprint();

 private:
  struct File {
    std::string path;
    int64_t first = 0;  // its first token in the corpus
    int64_t tokens = 0;
    int64_t skip = 0;  // bytes before its first token
  };
  explicit Corpus(const Options& options) : options_(options) {}
  absl::Status AddFolder(const std::string& path);
  absl::Status AddText(const std::string& path, int64_t bytes);
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

// The installed torch package: $SLUICE_PYTHON_PACKAGES/torch, else where this
// binary was configured with. Its Python sources are the demo's text.
std::string DefaultCorpusPath();

}  // namespace sluice::train
