// Training text as one long sequence of token ids, which is never loaded whole,
// and the dealing of its rows to ranks.
//
// A text file or folder is bytes, one token per byte; a folder is its text
// files in sorted order, joined. A `.bin` has uint16 or uint32 ids; the width
// comes from llm.c's header, else from --token-bytes, else from a Megatron
// `.idx` in the same folder.
// Errors: InvalidArgument / NotFound, one line: what, value, what to do.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/stream/layouts.h"
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
  // Hashes the text's length and 64 pieces spread over the text (all of a short
  // text). The hash misses a change between the pieces that keeps the length.
  absl::StatusOr<std::string> Fingerprint();

 private:
  struct File {
    std::string path;
    int64_t first = 0;  // index of the file's first token in the corpus
    int64_t tokens = 0;
    int64_t skip = 0;  // bytes before the file's first token
  };
  explicit Corpus(const Options& options) : options_(options) {}
  absl::Status AddFolder(const std::string& path);
  void AddText(const std::string& path, int64_t bytes);
  absl::Status AddIds(const std::string& path, int64_t bytes);
  absl::Status ReadFile(size_t index, int64_t first, std::span<int64_t> out);

  Options options_;
  int token_bytes_ = 1;
  int64_t total_ = 0;
  std::vector<File> files_;
  size_t open_index_ = SIZE_MAX;
  UniqueFd open_;
  std::vector<unsigned char> bytes_;  // of one read, reused
};

// InvalidArgument: the corpus is shorter than one sequence and its last label.
absl::Status CheckLength(const Corpus& corpus, int64_t seq_len);

// Deals the corpus to the ranks. The cursor counts tokens over all ranks, so it
// means the same for every number of ranks and every sequence length. A row's
// label is the corpus's next token, even if that token is another rank's.
class Dealer {
 public:
  // The corpus outlives the dealer.
  Dealer(Corpus* corpus, const stream::ChunkLayout& layout, int64_t rank)
      : corpus_(corpus), layout_(layout), rank_(rank) {}

  // Fills `ids` and `labels`, each of layout.total_local_rows(rank), with this
  // rank's rows, chunk after chunk. The sequence starts at token `cursor`, or
  // at token 0 if less than a whole sequence is left.
  absl::Status Deal(int64_t cursor, std::span<int64_t> ids,
                    std::span<int64_t> labels);
  int64_t Next(int64_t cursor) const {
    return Start(cursor) + layout_.seq_len();
  }

 private:
  int64_t Start(int64_t cursor) const;

  Corpus* corpus_;
  stream::ChunkLayout layout_;
  int64_t rank_;
  std::vector<int64_t> tokens_;  // of one chunk, and the token after it
};

}  // namespace sluice::train
