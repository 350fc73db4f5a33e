// Ulysses' head exchange: attention heads are distributed over ranks while
// tokens are gathered, with one flat all-to-all per call.
//
// The token side has this rank's rows of a chunk and all heads: [rows, heads,
// dim]. The head side has this rank's heads: [rows, q_per_rank or kv_per_rank,
// dim]. Its k and v have the rows of all ranks, its q and o those of the rank's
// part (stream::HeadLayout).
//
//   forward   q, k, v  ToHeads     o           ToTokens
//   backward  dO       ToHeads     dq, dk, dv  ToTokens
//
// Only the kv heads that a rank uses are sent. Where groups of q heads do not
// align with ranks, kv heads are expanded per q head on arrival. ToTokens sums
// gradients over that expansion and over the ranks that hold replicas. A rank's
// own rows never pass through a message.
//
// Strides are free on both sides. ToHeads copies across types. ToTokens sends
// the head side's type and adds into the token side's, so fp32 token tensors
// get exact sums of bf16 messages.
//
// Memory: two transient flat buffers, one sent and one received. Throws what
// ATen throws (c10::Error). Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"
#include "planner/stream/layouts.h"

namespace sluice::runtime {

// The rows of a chunk that are exchanged: `count[p]` of rank p. On the head
// side, rank p's rows of k and v begin at row `begin[p]`; q and o begin with
// the rows of the part's first rank. A token-side tensor has this rank's count.
struct RowRuns {
  std::vector<int64_t> begin, count;

  // Returns all rows of chunk m.
  static RowRuns Whole(const stream::ChunkLayout& layout, int64_t m);
};

enum class HeadKind { kQuery, kKeyValue };

struct ExchangePart {
  HeadKind kind = HeadKind::kQuery;
  at::Tensor token_side;  // [count[rank], heads or kv_heads, dim]
  at::Tensor head_side;   // [rows, q_per_rank or kv_per_rank, dim]
};

struct HeadTensors {
  at::Tensor q, k, v;
};
std::vector<ExchangePart> QkvParts(const HeadTensors& token_side,
                                   const HeadTensors& head_side);

class HeadExchange {
 public:
  // `collectives` outlives the exchange; it may be null with one rank.
  HeadExchange(int64_t heads, int64_t kv_heads, int64_t ranks, int rank,
               Collectives* collectives);

  const stream::HeadLayout& heads() const { return layout_; }
  // Returns true with one rank. Both sides of a part may then be the same
  // tensor, and nothing is copied.
  bool local() const { return ranks_ == 1; }

  absl::Status ToHeads(const RowRuns& runs,
                       const std::vector<ExchangePart>& parts);
  // kv parts are summed (see the file comment).
  absl::Status ToTokens(const RowRuns& runs,
                        const std::vector<ExchangePart>& parts);

 private:
  struct Range {
    int64_t begin, count;
  };
  // Returns whether rows of that kind travel between this rank and p.
  bool Travels(HeadKind kind, int64_t p) const {
    return kind == HeadKind::kKeyValue ||
           layout_.part(p) == layout_.part(rank_);
  }
  // Returns the rows of rank p on the head side.
  at::Tensor RowsOf(const ExchangePart& part, const RowRuns& runs,
                    int64_t p) const;
  absl::Status Exchange(const RowRuns& runs,
                        const std::vector<ExchangePart>& parts, bool to_heads);
  // Returns the heads of the token side that rank p works on.
  Range HeadsOf(HeadKind kind, int64_t p) const;
  at::Tensor HomeOf(const ExchangePart& part, int64_t p) const;
  // Returns the elements of a message between this rank and p: `rows` rows for
  // the heads of `holder`, one of the two.
  int64_t MessageSize(const std::vector<ExchangePart>& parts, int64_t rows,
                      int64_t p, int64_t holder) const;
  void Expand(HeadKind kind, const at::Tensor& from,
              const at::Tensor& to) const;
  void Contract(HeadKind kind, const at::Tensor& from,
                const at::Tensor& to) const;

  int64_t ranks_;
  int rank_;
  stream::HeadLayout layout_;
  Collectives* collectives_;
};

}  // namespace sluice::runtime
