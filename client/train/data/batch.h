// Deals the corpus to the ranks. The cursor counts tokens over all ranks, so it
// means the same for every number of ranks and every length. Labels are the
// next tokens, shifted before dealing: a rank's last row has its label though
// the token itself belongs to another rank.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/train/data/corpus.h"
#include "planner/stream/layouts.h"

namespace sluice::train {

// InvalidArgument: the corpus is shorter than one sequence and its last label.
absl::Status CheckLength(const Corpus& corpus, int64_t seq_len);

class Dealer {
 public:
  // The corpus outlives the dealer.
  Dealer(Corpus* corpus, const stream::ChunkLayout& layout, int64_t rank)
      : corpus_(corpus), layout_(layout), rank_(rank) {}

  // Returns this rank's layout.total_local_rows(rank) ids and labels, chunk
  // after chunk, of the sequence at token `cursor`, or at token 0 if less than
  // a whole sequence is left.
  absl::Status Deal(int64_t cursor, std::span<int64_t> ids,
                    std::span<int64_t> labels);
  // Returns where the next sequence starts.
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
