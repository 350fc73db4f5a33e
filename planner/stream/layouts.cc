#include "planner/stream/layouts.h"

#include <algorithm>
#include <numeric>

namespace sluice::stream {
namespace {

// Maps q heads [first, first + count) to kv heads, without duplicates.
std::vector<int64_t> KvHeadsUsed(int64_t first, int64_t count, int64_t group) {
  std::vector<int64_t> used;
  for (int64_t q = first; q < first + count; ++q) {
    if (used.empty() || used.back() != q / group) used.push_back(q / group);
  }
  return used;
}

// Returns whether each kv head of `used` serves an equal run of these q heads.
bool EqualRuns(const std::vector<int64_t>& used, int64_t first, int64_t count,
               int64_t group) {
  const int64_t kv_heads = static_cast<int64_t>(used.size());
  if (count % kv_heads != 0) return false;
  const int64_t run = count / kv_heads;
  for (int64_t q = 0; q < count; ++q) {
    if (used[q / run] != (first + q) / group) return false;
  }
  return true;
}

}  // namespace

ChunkLayout::ChunkLayout(int64_t seq_len, int64_t chunk, int64_t ranks)
    : seq_len_(std::max<int64_t>(seq_len, 0)),
      chunk_(std::max<int64_t>(std::min(chunk, seq_len), 1)),
      ranks_(std::max<int64_t>(ranks, 1)) {}

int64_t ChunkLayout::rows(int64_t m) const {
  return std::clamp<int64_t>(seq_len_ - begin(m), 0, chunk_);
}

int64_t ChunkLayout::local_rows(int64_t m, int64_t rank) const {
  const int64_t all = rows(m);
  return all / ranks_ + (rank < all % ranks_ ? 1 : 0);
}

int64_t ChunkLayout::local_offset(int64_t m, int64_t rank) const {
  const int64_t all = rows(m);
  return rank * (all / ranks_) + std::min(rank, all % ranks_);
}

int64_t ChunkLayout::total_local_rows(int64_t rank) const {
  return local_rows_before(chunks(), rank);
}

int64_t ChunkLayout::local_rows_before(int64_t m, int64_t rank) const {
  const int64_t whole = std::min(m, seq_len_ / chunk_);  // full chunks
  const int64_t tail = m > whole ? local_rows(whole, rank) : 0;
  return whole * (whole > 0 ? local_rows(0, rank) : 0) + tail;
}

HeadLayout::HeadLayout(int64_t heads, int64_t kv_heads, int64_t ranks)
    : head_ranks(std::gcd(heads, ranks)),
      row_parts(ranks / head_ranks),
      q_per_rank(heads / head_ranks),
      kv_per_rank(0),
      grouped(true) {
  const int64_t group = heads / kv_heads;
  for (int64_t r = 0; r < head_ranks; ++r) {
    kv_of_group_.push_back(KvHeadsUsed(r * q_per_rank, q_per_rank, group));
    const std::vector<int64_t>& used = kv_of_group_.back();
    grouped = grouped && used.size() == kv_of_group_.front().size() &&
              EqualRuns(used, r * q_per_rank, q_per_rank, group);
  }
  kv_per_rank = static_cast<int64_t>(kv_of_group_.front().size());
  if (grouped) return;
  kv_per_rank = q_per_rank;
  for (int64_t r = 0; r < head_ranks; ++r) {
    kv_of_group_[r].resize(q_per_rank);
    for (int64_t q = 0; q < q_per_rank; ++q) {
      kv_of_group_[r][q] = (r * q_per_rank + q) / group;
    }
  }
}

}  // namespace sluice::stream
