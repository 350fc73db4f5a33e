// Which tokens a rank sees: a cursor over the corpus, and the dealing of one
// sequence to the ranks.
//
// The cursor is global and counts tokens of the corpus, so it means the same
// whatever the number of ranks and the length. Labels are the next token,
// shifted before dealing: a rank's last row has its label though the token
// itself lies on another rank. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/train/data/corpus.h"
#include "planner/stream/layouts.h"

namespace sluice::train {

// InvalidArgument when the corpus has not one whole sequence and its last
// label: have, need, what to do.
absl::Status CheckLength(const Corpus& corpus, int64_t seq_len);

class Dealer {
 public:
  // The corpus outlives the dealer.
  Dealer(Corpus* corpus, const stream::ChunkLayout& layout, int64_t rank)
      : corpus_(corpus), layout_(layout), rank_(rank) {}

  // This rank's ids and labels of the sequence that starts at token `cursor`
  // (at the corpus' start where there is not one whole sequence left), chunk
  // after chunk. Both spans hold layout.total_local_rows(rank) entries.
  absl::Status Deal(int64_t cursor, std::span<int64_t> ids,
                    std::span<int64_t> labels);
  // Where the sequence after it starts.
  int64_t Next(int64_t cursor) const {
    return Start(cursor) + layout_.seq_len();
  }

 private:
  int64_t Start(int64_t cursor) const;

  Corpus* corpus_;
  stream::ChunkLayout layout_;
  int64_t rank_;
  std::vector<int64_t> tokens_;  // of one chunk, and one more
};

}  // namespace sluice::train
