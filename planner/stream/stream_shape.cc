#include "planner/stream/stream_shape.h"

#include <algorithm>
#include <cmath>

namespace sluice::stream {
namespace {

// A probe: the first two, and the first and the last group of the loss.
std::vector<int64_t> ActiveChunks(const StreamOptions& options) {
  const int64_t chunks = options.layout.chunks();
  const int64_t group = CutLoss(options).chunks;
  const int64_t last = (chunks - 1) / group * group;
  std::vector<int64_t> active;
  for (int64_t m = 0; m < chunks; ++m) {
    if (!options.probe || m < std::max<int64_t>(group, 2) || m >= last) {
      active.push_back(m);
    }
  }
  return active;
}

}  // namespace

StreamShape::StreamShape(const StreamOptions& options)
    : layout(options.layout),
      rank(options.rank),
      ranks(options.layout.ranks()),
      layers(options.model.layers),
      hidden(options.model.hidden),
      ffn(options.model.ffn),
      vocab(options.model.vocab),
      dim(options.model.head_dim()),
      element(ElementBytes(options.dtype)),
      prefetch_depth(options.prefetch_depth),
      gated(options.model.gated),
      probe(options.probe),
      active(ActiveChunks(options)) {
  const HeadLayout heads(options.model.heads, options.model.kv_heads, ranks);
  q_heads = heads.q_per_rank;
  kv_heads = heads.kv_per_rank;
  for (const Saved which : kAllSaved) {
    const auto given = options.fractions.find(saved(which).name);
    fractions[static_cast<size_t>(which)] =
        given != options.fractions.end() ? given->second
                                         : ClassFractions{0, options.alpha};
  }
  const int64_t rows = std::max<int64_t>(local(0), 1);
  ffn_rows =
      options.ffn_chunk_rows > 0 ? options.ffn_chunk_rows : (rows + 1) / 2;
  loss = CutLoss(options);
}

// Down: what is kept never takes more than its fraction.
int64_t StreamShape::kept_of(Saved which, int64_t m, int64_t p) const {
  const double keep = fractions[static_cast<size_t>(which)].keep;
  const auto rows = static_cast<double>(layout.local_rows(m, p));
  return static_cast<int64_t>(std::floor(keep * rows));
}

// Stored rows are rounded by themselves, so that host memory is known to half
// a row whatever is kept; where the two do not add up a row is dropped.
int64_t StreamShape::present_of(Saved which, int64_t m, int64_t p) const {
  const double swap = fractions[static_cast<size_t>(which)].swap;
  const int64_t rows = layout.local_rows(m, p);
  const int64_t stored = std::llround(swap * static_cast<double>(rows));
  return std::min(kept_of(which, m, p) + stored, rows);
}

int64_t StreamShape::head_stored(Saved which, int64_t m) const {
  int64_t sum = 0;
  for (int64_t p = 0; p < ranks; ++p) sum += present_of(which, m, p);
  return sum;
}

std::vector<RowPiece> StreamShape::pieces(Saved which, int64_t m) const {
  std::vector<RowPiece> pieces;
  int64_t row = 0, placed[2] = {0, 0};
  const auto add = [&](bool stored, int64_t rows) {
    if (rows == 0) return;
    if (!pieces.empty() && pieces.back().stored == stored) {
      pieces.back().rows += rows;
    } else {
      pieces.push_back({stored, row, rows, placed[stored]});
    }
    row += rows;
    placed[stored] += rows;
  };
  for (int64_t p = 0; p < ranks; ++p) {
    const int64_t present = present_of(which, m, p);
    add(true, present);
    add(false, layout.local_rows(m, p) - present);
  }
  return pieces;
}

std::vector<LossGroup> StreamShape::loss_groups() const {
  std::vector<LossGroup> groups = GroupChunks(layout, loss.chunks);
  if (probe && groups.size() > 2) groups = {groups.front(), groups.back()};
  return groups;
}

int64_t StreamShape::loss_rows(const LossGroup& group) const {
  return layout.local_rows_before(group.first + group.chunks, rank) -
         layout.local_rows_before(group.first, rank);
}

int64_t StreamShape::previous(int64_t m) const {
  int64_t before = -1;
  for (const int64_t i : active) {
    if (i < m) before = i;
  }
  return before;
}

SavedClass StreamShape::saved(Saved which) const {
  const int64_t wide = hidden * element;
  const int64_t up = ffn * element;
  switch (which) {
    case Saved::kNorm1:
      return {"norm1", false, false, wide};
    case Saved::kQ:
      return {"q", true, false, query_row_bytes()};
    case Saved::kK:
      return {"k", true, false, key_row_bytes()};
    case Saved::kV:
      return {"v", true, false, key_row_bytes()};
    case Saved::kO:
      return {"attention_output", true, true, output_row_bytes()};
    case Saved::kLse:
      return {"lse", true, true, q_heads * 4};
    case Saved::kX2:
      return {"attention_residual", false, false, wide};
    case Saved::kNorm2:
      return {"norm2", false, false, wide};
    case Saved::kUp:
      return {"ffn_up", false, false, up};
    case Saved::kGate:
      return {"ffn_gate", false, false, gated ? up : 0};
    case Saved::kAct:
      return {"ffn_activation", false, false, up};
  }
  return {};
}

int64_t StreamShape::stored(Saved which, int64_t m) const {
  const SavedClass info = saved(which);
  if (info.whole) return rows(m);
  return info.head_layout ? head_stored(which, m)
                          : present(which, m) - kept(which, m);
}

int64_t StreamShape::most_stored_bytes(Saved which) const {
  return AlignSlot(stored(which, 0) * saved(which).row_bytes);
}

RingSizes StreamShape::rings(Phase phase) const {
  const int64_t q = AlignSlot(rows(0) * query_row_bytes());
  const int64_t o = AlignSlot(rows(0) * output_row_bytes());
  const int64_t kv = 2 * AlignSlot(rows(0) * key_row_bytes());
  const int64_t lse = AlignSlot(rows(0) * q_heads * 4);
  const int64_t x = AlignSlot(hidden_bytes(0));
  // The last layer's output, as the loss takes it.
  const LossGroup most{0, std::min(loss.chunks, chunks()), true};
  const int64_t y = AlignSlot(loss_rows(most) * hidden * element);
  const int64_t query_sum = AlignSlot(query_gradient_bytes(0));
  int64_t post = 0;
  for (const Saved which : kPostSaved) post += most_stored_bytes(which);
  const int64_t norm1 = most_stored_bytes(Saved::kNorm1);
  int64_t dropped = 0;
  for (const Saved which : kHeadSaved) {
    dropped += AlignSlot(head_dropped(which, 0) * saved(which).row_bytes);
  }
  switch (phase) {
    case Phase::kForward:
      return {.staging = q + o + kv + lse + norm1 + post + x,
              .inputs = x,
              .blocks = kv};
    case Phase::kTokens:
      return {.staging = std::max(q + x + dropped, y),
              .inputs = std::max(2 * x + o + post, y)};
    case Phase::kAttention:
      return {.staging = x,
              .inputs = 2 * x + norm1,
              .blocks = 2 * q + o + lse,
              .gradients = query_sum,
              .keys = kv,
              .query_sum = query_sum,
              .key_sum = AlignSlot(rows(0) * kv_heads * dim * 4)};
  }
  return {};
}

int64_t StreamShape::ring_bytes() const {
  int64_t most = 0;
  for (const Phase phase : kPhases) {
    most = std::max(most, rings(phase).Total(prefetch_depth));
  }
  return most;
}

int64_t StreamShape::host_bytes() const {
  int64_t hidden_states = 0, layer = 0, scratch = 0;
  for (int64_t m = 0; m < chunks(); ++m) {
    hidden_states += AlignSlot(hidden_bytes(m));
    for (const Saved which : kAllSaved) {
      layer += AlignSlot(stored_bytes(which, m));
    }
    for (const Saved which : kHeadSaved) {
      scratch += AlignSlot(dropped_bytes(which, m));
    }
    scratch += AlignSlot(rows(m) * query_row_bytes()) +  // dO
               AlignSlot(query_gradient_bytes(m));
  }
  return (layers + 1) * hidden_states + layers * layer + scratch;
}

int64_t StreamShape::kept_bytes() const {
  int64_t layer = 0;
  for (const Saved which : kAllSaved) {
    for (int64_t m = 0; m < chunks(); ++m) {
      layer += AlignSlot(kept_bytes(which, m));
    }
  }
  return layers * layer;
}

Bytes HostBytes(const StreamOptions& options) {
  return Bytes(StreamShape(options).host_bytes());
}

Bytes RingBytes(const StreamOptions& options) {
  return Bytes(StreamShape(options).ring_bytes());
}

Bytes KeptBytes(const StreamOptions& options) {
  return Bytes(StreamShape(options).kept_bytes());
}

}  // namespace sluice::stream
