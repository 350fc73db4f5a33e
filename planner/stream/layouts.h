// How a sequence is cut into chunks, and its rows and heads among ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::stream {

// Cuts a global sequence into chunks and divides each chunk among ranks (FPDT's
// rank-ordinal layout): global chunk m is contiguous, [begin, end), and rank r
// owns a contiguous run of its rows. The last chunk may be shorter and is split
// unevenly, so a rank may own none of its rows.
class ChunkLayout {
 public:
  ChunkLayout(int64_t seq_len, int64_t chunk, int64_t ranks);

  int64_t chunks() const { return (seq_len_ + chunk_ - 1) / chunk_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t ranks() const { return ranks_; }
  int64_t begin(int64_t m) const { return m * chunk_; }
  int64_t rows(int64_t m) const;  // of chunk m over all ranks
  int64_t max_rows() const { return rows(0); }
  // Return the rank's rows of chunk m, and where they start inside the chunk.
  int64_t local_rows(int64_t m, int64_t rank) const;
  int64_t local_offset(int64_t m, int64_t rank) const;
  // Return the rank's rows of the whole sequence, and of the chunks before m.
  int64_t total_local_rows(int64_t rank) const;
  int64_t local_rows_before(int64_t m, int64_t rank) const;

 private:
  int64_t seq_len_, chunk_, ranks_;
};

// The heads and the queries for which each rank computes attention (Ulysses).
// `head_ranks` ranks, the greatest common divisor of ranks and heads, divide
// the heads. If there are more ranks, a chunk's queries are cut into
// `row_parts` parts, each with the rows of `head_ranks` consecutive ranks, and
// k and v of the whole chunk are gathered to each part (context parallelism
// with gathered keys: Llama 3, arXiv 2407.21783, section 3.3.2).
//
// If a rank's q heads do not use its kv heads in equal groups (12 and 3 heads
// on 4 ranks), kv heads are expanded to one per q head, and `grouped` is false.
struct HeadLayout {
  HeadLayout(int64_t heads, int64_t kv_heads, int64_t ranks);

  int64_t part(int64_t rank) const { return rank / head_ranks; }
  int64_t first_head(int64_t rank) const {
    return rank % head_ranks * q_per_rank;
  }
  // Returns the numbers of the rank's kv heads, in local order. A number may
  // repeat over ranks (replicas) and, if expanded, within a rank.
  const std::vector<int64_t>& kv_of(int64_t rank) const {
    return kv_of_group_[rank % head_ranks];
  }

  int64_t head_ranks, row_parts;
  int64_t q_per_rank;
  int64_t kv_per_rank;  // after expansion
  // Whether each local kv head serves the next q_per_rank / kv_per_rank local q
  // heads, on every rank. Else kv_per_rank == q_per_rank.
  bool grouped;

 private:
  std::vector<std::vector<int64_t>> kv_of_group_;
};

}  // namespace sluice::stream
