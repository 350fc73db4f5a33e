#include "client/torch/ranks/ulysses.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <numeric>
#include <utility>

#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// Copies unless both are the very same memory.
void CopyUnlessSame(const at::Tensor& to, const at::Tensor& from) {
  const bool same = to.data_ptr() == from.data_ptr() &&
                    to.strides() == from.strides() &&
                    to.scalar_type() == from.scalar_type();
  if (!same) to.copy_(from);
}

at::Tensor Empty(const std::vector<int64_t>& counts, const at::Tensor& like) {
  return at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})},
                   like.options());
}

}  // namespace

RowRuns RowRuns::Whole(const stream::ChunkLayout& layout, int64_t m) {
  RowRuns runs;
  for (int64_t p = 0; p < layout.ranks(); ++p) {
    runs.begin.push_back(layout.local_offset(m, p));
    runs.count.push_back(layout.local_rows(m, p));
  }
  return runs;
}

std::vector<ExchangePart> QkvParts(const HeadTensors& token_side,
                                   const HeadTensors& head_side) {
  return {{HeadKind::kQuery, token_side.q, head_side.q},
          {HeadKind::kKeyValue, token_side.k, head_side.k},
          {HeadKind::kKeyValue, token_side.v, head_side.v}};
}

HeadExchange::HeadExchange(int64_t heads, int64_t kv_heads, int64_t ranks,
                           int rank, Collectives* collectives)
    : ranks_(ranks),
      rank_(rank),
      layout_(heads, kv_heads, ranks),
      collectives_(collectives) {}

HeadExchange::Range HeadExchange::HeadsOf(HeadKind kind, int64_t p) const {
  if (kind == HeadKind::kQuery) {
    return {layout_.first_head(p), layout_.q_per_rank};
  }
  const std::vector<int64_t>& used = layout_.kv_of(p);
  return {used.front(), used.back() - used.front() + 1};
}

at::Tensor HeadExchange::RowsOf(const ExchangePart& part, const RowRuns& runs,
                                int64_t p) const {
  const int64_t first = part.kind == HeadKind::kQuery
                            ? runs.begin[layout_.part(p) * layout_.head_ranks]
                            : 0;
  return part.head_side.narrow(0, runs.begin[p] - first, runs.count[p]);
}

at::Tensor HeadExchange::HomeOf(const ExchangePart& part, int64_t p) const {
  const Range range = HeadsOf(part.kind, p);
  return part.token_side.narrow(1, range.begin, range.count);
}

int64_t HeadExchange::MessageSize(const std::vector<ExchangePart>& parts,
                                  int64_t rows, int64_t p,
                                  int64_t holder) const {
  int64_t size = 0;
  for (const ExchangePart& part : parts) {
    if (!Travels(part.kind, p)) continue;
    size += rows * HeadsOf(part.kind, holder).count * part.token_side.size(2);
  }
  return size;
}

// Copies `from`, which has each of this rank's kv heads once, to `to`, which
// has one kv head per q head if heads are expanded.
void HeadExchange::Expand(HeadKind kind, const at::Tensor& from,
                          const at::Tensor& to) const {
  if (kind == HeadKind::kQuery || layout_.grouped) {
    return CopyUnlessSame(to, from);
  }
  const std::vector<int64_t>& used = layout_.kv_of(rank_);
  for (int64_t i = 0; i < layout_.kv_per_rank; ++i) {
    to.select(1, i).copy_(from.select(1, used[i] - used.front()));
  }
}

// Reverses Expand: sums the copies of each expanded head.
void HeadExchange::Contract(HeadKind kind, const at::Tensor& from,
                            const at::Tensor& to) const {
  if (kind == HeadKind::kQuery || layout_.grouped) {
    return CopyUnlessSame(to, from);
  }
  const std::vector<int64_t>& used = layout_.kv_of(rank_);
  for (int64_t i = 0; i < layout_.kv_per_rank;) {
    int64_t end = i;
    while (end < layout_.kv_per_rank && used[end] == used[i]) ++end;
    to.select(1, used[i] - used.front())
        .copy_(at::sum(from.narrow(1, i, end - i), {1}));
    i = end;
  }
}

// Runs one all-to-all. With `to_heads`, this rank sends its rows of rank p's
// heads to p, and receives p's rows of its own heads; else the reverse.
absl::Status HeadExchange::Exchange(const RowRuns& runs,
                                    const std::vector<ExchangePart>& parts,
                                    bool to_heads) {
  const int64_t mine = runs.count[rank_];
  std::vector<int64_t> sent(ranks_, 0), received(ranks_, 0);
  for (int64_t p = 0; p < ranks_; ++p) {
    if (p == rank_) continue;
    sent[p] = MessageSize(parts, mine, p, p);
    received[p] = MessageSize(parts, runs.count[p], p, rank_);
  }
  if (!to_heads) std::swap(sent, received);
  // Calls body(part, p, piece) for the pieces of a flat buffer of messages, as
  // [rows, heads, dim].
  const auto each = [&](const at::Tensor& flat, bool of_tokens,
                        const auto& body) {
    int64_t at = 0;
    for (int64_t p = 0; p < ranks_; ++p) {
      for (const ExchangePart& part : parts) {
        if (p == rank_ || !Travels(part.kind, p)) continue;
        const int64_t rows = of_tokens ? mine : runs.count[p];
        const int64_t heads = HeadsOf(part.kind, of_tokens ? p : rank_).count;
        const int64_t dim = part.token_side.size(2), size = rows * heads * dim;
        body(part, p, flat.narrow(0, at, size).view({rows, heads, dim}));
        at += size;
      }
    }
  };
  const at::Tensor& like =
      to_heads ? parts.front().token_side : parts.front().head_side;
  const at::Tensor receive = Empty(received, like);
  {
    const at::Tensor send = Empty(sent, like);
    each(send, to_heads,
         [&](const ExchangePart& part, int64_t p, const at::Tensor& piece) {
           if (to_heads) {
             piece.copy_(HomeOf(part, p));
           } else {
             Contract(part.kind, RowsOf(part, runs, p), piece);
           }
         });
    SLUICE_RETURN_IF_ERROR(
        collectives_->AllToAll(receive, received, send, sent));
  }
  each(receive, !to_heads,
       [&](const ExchangePart& part, int64_t p, const at::Tensor& piece) {
         if (to_heads) return Expand(part.kind, piece, RowsOf(part, runs, p));
         const at::Tensor home = HomeOf(part, p);
         part.kind == HeadKind::kKeyValue ? home.add_(piece)
                                          : home.copy_(piece);
       });
  return absl::OkStatus();
}

absl::Status HeadExchange::ToHeads(const RowRuns& runs,
                                   const std::vector<ExchangePart>& parts) {
  for (const ExchangePart& part : parts) {  // this rank's rows and heads
    Expand(part.kind, HomeOf(part, rank_), RowsOf(part, runs, rank_));
  }
  return local() ? absl::OkStatus() : Exchange(runs, parts, /*to_heads=*/true);
}

absl::Status HeadExchange::ToTokens(const RowRuns& runs,
                                    const std::vector<ExchangePart>& parts) {
  for (const ExchangePart& part : parts) {
    // Sums of heads that only other ranks hold start at zero.
    if (part.kind == HeadKind::kKeyValue && !local()) part.token_side.zero_();
    Contract(part.kind, RowsOf(part, runs, rank_), HomeOf(part, rank_));
  }
  return local() ? absl::OkStatus() : Exchange(runs, parts, /*to_heads=*/false);
}

}  // namespace sluice::runtime
