#include "planner/stream/transient_exchange.h"

#include <algorithm>

namespace sluice::stream {
namespace {

// Bytes of a row that is for the heads of rank p, or comes from them. Replicas
// of a kv head travel once.
int64_t RowBytes(const HeadLayout& heads, size_t p, const Travellers& what) {
  const int64_t keys =
      heads.kv_of_rank[p].back() - heads.kv_of_rank[p].front() + 1;
  return (what.queries * heads.q_per_rank + what.keys * keys) * what.dim *
         what.element;
}

}  // namespace

void Exchange(TransientHeap& heap, const HeadLayout& heads, int64_t rank,
              const std::vector<int64_t>& rows, const Travellers& what,
              Towards where) {
  const auto mine = static_cast<size_t>(rank);
  int64_t tokens = 0, others = 0;  // messages by whose rows are in them
  for (size_t p = 0; p < rows.size(); ++p) {
    if (p == mine) continue;
    tokens += rows[mine] * RowBytes(heads, p, what);
    others += rows[p] * RowBytes(heads, mine, what);
  }
  const bool away = where == Towards::kHeads;
  const auto received = heap.Take(away ? others : tokens);
  const auto sent = heap.Take(away ? tokens : others);
  // Gradients of an expanded kv head are summed one head at a time.
  if (where == Towards::kTokens && what.keys > 0 && !heads.grouped) {
    heap.Pass(*std::ranges::max_element(rows) * what.dim * what.element);
  }
}

}  // namespace sluice::stream
