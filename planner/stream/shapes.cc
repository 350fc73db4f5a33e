#include "planner/stream/shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::stream {
namespace {

// One named number with the least it may be.
struct Minimum {
  const char* flag;
  int64_t value;
  int64_t least;
};

absl::Status CheckMinimum(const Minimum& minimum) {
  if (minimum.value >= minimum.least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is {}: it must be {} or more", minimum.flag,
                  minimum.value, minimum.least));
}

absl::Status CheckDivides(const char* flag, int64_t value, const char* by_flag,
                          int64_t by, const char* advice) {
  if (value % by == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{} {} does not divide by {} {}: {}", flag, value, by_flag, by, advice));
}

int64_t LayerParameters(const ModelConfig& c) {
  const int64_t kv = c.kv_heads * c.head_dim();
  const int64_t attention = 2 * c.hidden * c.hidden + 2 * kv * c.hidden;
  if (c.arch == Arch::kLlama) {
    return attention + 3 * c.ffn * c.hidden + 2 * c.hidden;
  }
  const int64_t biases = 2 * c.hidden + 2 * kv + c.ffn + c.hidden;
  return attention + 2 * c.ffn * c.hidden + biases + 4 * c.hidden;
}

// The q heads [first, first + count) mapped to kv heads, repeats dropped.
std::vector<int64_t> KvHeadsUsed(int64_t first, int64_t count, int64_t group) {
  std::vector<int64_t> used;
  for (int64_t q = first; q < first + count; ++q) {
    if (used.empty() || used.back() != q / group) used.push_back(q / group);
  }
  return used;
}

// Does each kv head of `used` serve an equal run of these q heads?
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

int64_t ModelConfig::parameters() const {
  const int64_t embed = vocab * hidden;
  const int64_t body = layers * LayerParameters(*this);
  if (arch == Arch::kLlama) return 2 * embed + body + hidden;
  return embed + max_positions * hidden + body + 2 * hidden;
}

absl::Status ModelConfig::Validate(int64_t ranks) const {
  const Minimum minimums[] = {
      {"--layers", layers, 1},
      {"--hidden", hidden, 1},
      {"--heads", heads, 1},
      {"--kv-heads", kv_heads, 1},
      {"--ffn", ffn, 1},
      {"--vocab", vocab, 2},
      {"--ranks", ranks, 1},
      {"max_positions", max_positions, arch == Arch::kGpt ? 1 : 0}};
  for (const Minimum& minimum : minimums) {
    if (absl::Status s = CheckMinimum(minimum); !s.ok()) return s;
  }
  absl::Status status;
  status.Update(CheckDivides("--hidden", hidden, "--heads", heads,
                             "choose a hidden size that is a multiple of it"));
  status.Update(CheckDivides("--heads", heads, "--kv-heads", kv_heads,
                             "every kv head must serve as many q heads"));
  status.Update(CheckDivides("--heads", heads, "--ranks", ranks,
                             "Ulysses gives each rank as many heads; use a "
                             "number of ranks that divides the heads"));
  if (!status.ok()) return status;
  if (arch == Arch::kLlama && head_dim() % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the head size --hidden/--heads is {}: RoPE turns pairs, "
                    "so it must be even",
                    head_dim()));
  }
  if (!(rope_theta > 0) || !(norm_epsilon > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("rope_theta is {} and norm_epsilon {}: both must be above "
                    "0",
                    rope_theta, norm_epsilon));
  }
  return absl::OkStatus();
}

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
    : q_per_rank(heads / ranks), kv_per_rank(0), grouped(true) {
  const int64_t group = heads / kv_heads;
  for (int64_t r = 0; r < ranks; ++r) {
    kv_of_rank.push_back(KvHeadsUsed(r * q_per_rank, q_per_rank, group));
    const std::vector<int64_t>& used = kv_of_rank.back();
    grouped = grouped && used.size() == kv_of_rank.front().size() &&
              EqualRuns(used, r * q_per_rank, q_per_rank, group);
  }
  kv_per_rank = static_cast<int64_t>(kv_of_rank.front().size());
  if (grouped) return;
  kv_per_rank = q_per_rank;
  for (int64_t r = 0; r < ranks; ++r) {
    kv_of_rank[r].resize(q_per_rank);
    for (int64_t q = 0; q < q_per_rank; ++q) {
      kv_of_rank[r][q] = (r * q_per_rank + q) / group;
    }
  }
}

}  // namespace sluice::stream
