#include "client/torch/ranks/ulysses.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <functional>

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

int64_t Total(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (int64_t count : counts) total += count;
  return total;
}

}  // namespace

// Hands out consecutive pieces of a flat message buffer as [rows, heads, dim].
class HeadExchange::MessageCursor {
 public:
  explicit MessageCursor(const at::Tensor& flat) : flat_(flat) {}
  at::Tensor Next(int64_t rows, int64_t heads, int64_t dim) {
    const int64_t size = rows * heads * dim;
    at::Tensor piece = flat_.narrow(0, at_, size).view({rows, heads, dim});
    at_ += size;
    return piece;
  }

 private:
  const at::Tensor& flat_;
  int64_t at_ = 0;
};

// One all-to-all: the elements sent to and received from each rank, and
// functions that fill and read the message of rank p.
struct HeadExchange::Messages {
  explicit Messages(int64_t ranks) : sent(ranks, 0), received(ranks, 0) {}
  std::vector<int64_t> sent, received;
  std::function<void(MessageCursor&, int64_t p)> pack, unpack;
};

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

absl::Status HeadExchange::Exchange(const Messages& messages,
                                    const at::TensorOptions& options) {
  const at::Tensor receive = at::empty({Total(messages.received)}, options);
  {
    const at::Tensor send = at::empty({Total(messages.sent)}, options);
    MessageCursor out(send);
    for (int64_t p = 0; p < ranks_; ++p) {
      if (p != rank_) messages.pack(out, p);
    }
    SLUICE_RETURN_IF_ERROR(collectives_->AllToAll(receive, messages.received,
                                                  send, messages.sent));
  }
  MessageCursor in(receive);
  for (int64_t p = 0; p < ranks_; ++p) {
    if (p != rank_) messages.unpack(in, p);
  }
  return absl::OkStatus();
}

absl::Status HeadExchange::ToHeads(const RowRuns& runs,
                                   const std::vector<ExchangePart>& parts) {
  const int64_t mine = runs.count[rank_];
  for (const ExchangePart& part : parts) {  // this rank's rows and heads
    const Range range = HeadsOf(part.kind, rank_);
    Expand(part.kind, part.token_side.narrow(1, range.begin, range.count),
           RowsOf(part, runs, rank_));
  }
  if (local()) return absl::OkStatus();

  Messages messages(ranks_);
  for (int64_t p = 0; p < ranks_; ++p) {
    if (p == rank_) continue;
    messages.sent[p] = MessageSize(parts, mine, p, p);
    messages.received[p] = MessageSize(parts, runs.count[p], p, rank_);
  }
  messages.pack = [&](MessageCursor& out, int64_t p) {
    for (const ExchangePart& part : parts) {
      if (!Travels(part.kind, p)) continue;
      const Range range = HeadsOf(part.kind, p);
      out.Next(mine, range.count, part.token_side.size(2))
          .copy_(part.token_side.narrow(1, range.begin, range.count));
    }
  };
  messages.unpack = [&](MessageCursor& in, int64_t p) {
    for (const ExchangePart& part : parts) {
      if (!Travels(part.kind, p)) continue;
      const int64_t heads = HeadsOf(part.kind, rank_).count;
      Expand(part.kind, in.Next(runs.count[p], heads, part.token_side.size(2)),
             RowsOf(part, runs, p));
    }
  };
  return Exchange(messages, parts.front().token_side.options());
}

absl::Status HeadExchange::ToTokens(const RowRuns& runs,
                                    const std::vector<ExchangePart>& parts) {
  const int64_t mine = runs.count[rank_];
  for (const ExchangePart& part : parts) {
    const Range range = HeadsOf(part.kind, rank_);
    // Sums of heads that only other ranks hold start at zero.
    if (part.kind == HeadKind::kKeyValue && !local()) part.token_side.zero_();
    Contract(part.kind, RowsOf(part, runs, rank_),
             part.token_side.narrow(1, range.begin, range.count));
  }
  if (local()) return absl::OkStatus();

  Messages messages(ranks_);
  for (int64_t p = 0; p < ranks_; ++p) {
    if (p == rank_) continue;
    messages.sent[p] = MessageSize(parts, runs.count[p], p, rank_);
    messages.received[p] = MessageSize(parts, mine, p, p);
  }
  messages.pack = [&](MessageCursor& out, int64_t p) {
    for (const ExchangePart& part : parts) {
      if (!Travels(part.kind, p)) continue;
      const int64_t heads = HeadsOf(part.kind, rank_).count;
      Contract(part.kind, RowsOf(part, runs, p),
               out.Next(runs.count[p], heads, part.token_side.size(2)));
    }
  };
  messages.unpack = [&](MessageCursor& in, int64_t p) {
    for (const ExchangePart& part : parts) {
      if (!Travels(part.kind, p)) continue;
      const Range range = HeadsOf(part.kind, p);
      const at::Tensor piece =
          in.Next(mine, range.count, part.token_side.size(2));
      const at::Tensor home =
          part.token_side.narrow(1, range.begin, range.count);
      part.kind == HeadKind::kKeyValue ? home.add_(piece) : home.copy_(piece);
    }
  };
  return Exchange(messages, parts.front().head_side.options());
}

}  // namespace sluice::runtime
