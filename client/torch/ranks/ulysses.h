// Ulysses' head exchange: attention heads are dealt over ranks while tokens
// are gathered, one flat all-to-all per call.
//
// Token side: this rank's rows of a chunk, all heads: [rows, heads, dim].
// Head side: the rows of all ranks, this rank's heads:
// [chunk rows, q_per_rank or kv_per_rank, dim].
//
//   forward   q, k, v  ToHeads     o           ToTokens
//   backward  dO       ToHeads     dq, dk, dv  ToTokens
//
// Only the kv heads a rank uses travel; they are expanded per q head on
// arrival where groups do not align, and ToTokens sums gradients over that
// expansion and over the ranks that hold replicas. A rank's own rows never
// pass through a message; with one rank nothing is sent at all.
//
// Strides are free on both sides (views into rings are fine). ToHeads copies
// across types; ToTokens sends the head side's type and adds into the token
// side's, so fp32 token tensors get exact sums of bf16 messages.
//
// Memory: two transient flat buffers, of what is sent and what is received.
// Throws what ATen throws (c10::Error). Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"
#include "planner/stream/layouts.h"

namespace sluice::runtime {

// Which rows of a chunk take part: of rank p, `count[p]` rows that lie at
// `begin[p]` of the head side. A token-side tensor holds exactly this rank's
// count; head-side rows of no run are left alone.
struct RowRuns {
  std::vector<int64_t> begin, count;

  // All rows of chunk m.
  static RowRuns Whole(const stream::ChunkLayout& layout, int64_t m);
  // Of each rank p's rows of chunk m all but the first kept[p]: what
  // token-wise recomputation rebuilds.
  static RowRuns Rest(const stream::ChunkLayout& layout, int64_t m,
                      const std::vector<int64_t>& kept);
};

enum class HeadKind { kQuery, kKeyValue };

struct ExchangePart {
  HeadKind kind = HeadKind::kQuery;
  at::Tensor token_side;  // [count[rank], heads or kv_heads, dim]
  at::Tensor head_side;   // [chunk rows, q_per_rank or kv_per_rank, dim]
};

class HeadExchange {
 public:
  // `collectives` may be null with one rank, else outlives the exchange.
  HeadExchange(int64_t heads, int64_t kv_heads, int64_t ranks, int rank,
               Collectives* collectives);

  const stream::HeadLayout& heads() const { return layout_; }
  // With one rank both sides of a part may be the same tensor: no copy.
  bool local() const { return ranks_ == 1; }

  // token_side -> head_side.
  absl::Status ToHeads(const RowRuns& runs,
                       const std::vector<ExchangePart>& parts);
  // head_side -> token_side; kv parts are summed (see above).
  absl::Status ToTokens(const RowRuns& runs,
                        const std::vector<ExchangePart>& parts);

 private:
  class MessageCursor;
  struct Messages;
  struct Range {
    int64_t begin, count;
  };
  absl::Status Exchange(const Messages& messages,
                        const at::TensorOptions& options);
  // Heads of the token side that rank p works on.
  Range HeadsOf(HeadKind kind, int64_t p) const;
  // Elements of a message about `rows` rows for the heads of rank p.
  int64_t MessageSize(const std::vector<ExchangePart>& parts, int64_t rows,
                      int64_t p) const;
  void Expand(HeadKind kind, const at::Tensor& from,
              const at::Tensor& to) const;
  void Contract(HeadKind kind, const at::Tensor& from,
                const at::Tensor& to) const;

  int64_t ranks_;
  int rank_;
  stream::HeadLayout layout_;
  std::vector<Range> kv_ranges_;  // of kv heads, per rank
  Collectives* collectives_;
};

}  // namespace sluice::runtime
