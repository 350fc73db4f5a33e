#include "planner/stream/stream_shape.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace sluice::stream {

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
      output_element(options.round_output ? element : 4),
      prefetch_depth(options.prefetch_depth),
      order(options.order),
      rerun_chunks(options.rerun_chunks),
      rerun_layers(options.rerun_layers),
      gated(options.model.gated),
      probe(options.probe) {
  const HeadLayout heads(options.model.heads, options.model.kv_heads, ranks);
  q_heads = heads.q_per_rank;
  kv_heads = heads.kv_per_rank;
  part_begin = heads.part(rank) * heads.head_ranks;
  part_end = part_begin + heads.head_ranks;
  for (const ClassTraits& c : kClasses) {
    fractions_[static_cast<size_t>(c.which)] =
        FractionsOf(options.fractions, c, options.alpha);
  }
  const int64_t rows = std::max<int64_t>(local(0), 1);
  ffn_rows =
      options.ffn_chunk_rows > 0 ? options.ffn_chunk_rows : (rows + 1) / 2;
  loss = CutLoss(options);
  for (const ClassTraits& c : kClasses) {
    resident_from_[static_cast<size_t>(c.which)] = FirstResident(c.which);
  }
  CutRuns();
}

// Rounds down, so that the kept part never exceeds its fraction. Hidden states
// stay in whole groups of the loss, which fetches a group's chunks together.
int64_t StreamShape::FirstResident(Class which) const {
  const double keep = fractions(which).keep;
  if (Traits(which).keep == Keep::kRows || keep == 0) return chunks();
  if (Traits(which).keep == Keep::kWhole) return keep == 1 ? 0 : chunks();
  const auto kept =
      static_cast<int64_t>(std::floor(keep * static_cast<double>(chunks())));
  const int64_t first = std::max(chunks() - kept, rerun_chunks);
  if (which != Class::kInput) return first;
  return std::min((first + loss.chunks - 1) / loss.chunks * loss.chunks,
                  chunks());
}

void StreamShape::CutRuns() {
  std::set<int64_t> bounds = {0, rerun_chunks, chunks() - 1, chunks()};
  bounds.insert(resident_from_.begin(), resident_from_.end());
  for (auto at = bounds.begin(); std::next(at) != bounds.end(); ++at) {
    runs_.push_back({*at, *std::next(at)});
  }
}

// Rounds down, so that the kept part never exceeds its fraction.
int64_t StreamShape::kept_of(Class which, int64_t m, int64_t p) const {
  if (Traits(which).keep != Keep::kRows) return 0;
  const double keep = fractions(which).keep;
  const auto rows = static_cast<double>(layout.local_rows(m, p));
  return static_cast<int64_t>(std::floor(keep * rows));
}

// Stored rows are rounded independently of kept rows, so that host memory is
// known to half a row, however many rows are kept. If the sum of both is less
// than all rows, a row is dropped.
int64_t StreamShape::present_of(Class which, int64_t m, int64_t p) const {
  const double swap = fractions(which).swap;
  const int64_t rows = layout.local_rows(m, p);
  if (resident(which, m)) return rows;
  const int64_t stored = std::llround(swap * static_cast<double>(rows));
  return std::min(kept_of(which, m, p) + stored, rows);
}

// The first ranks have one row more than the others, so ranks are summed in two
// groups. (A sum over hundreds of ranks would take most of the desk's time.)
int64_t StreamShape::StoredOf(Class which, int64_t m, int64_t begin,
                              int64_t end) const {
  const int64_t more = std::clamp(rows(m) % ranks, begin, end) - begin;
  return more * present_of(which, m, 0) +
         (end - begin - more) * present_of(which, m, ranks - 1);
}

int64_t StreamShape::head_stored(Class which, int64_t m) const {
  const auto [begin, end] = HeadRanks(which);
  return StoredOf(which, m, begin, end);
}

std::vector<RowPiece> StreamShape::pieces(Class which, int64_t m) const {
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
  const auto [begin, end] = HeadRanks(which);
  for (int64_t p = begin; p < end; ++p) {
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

std::vector<int64_t> StreamShape::active_chunks() const {
  const int64_t last = (chunks() - 1) / loss.chunks * loss.chunks;
  std::vector<int64_t> active;
  for (int64_t m = 0; m < chunks(); ++m) {
    if (!probe || m < std::max<int64_t>(loss.chunks, 2) || m >= last) {
      active.push_back(m);
    }
  }
  return active;
}

int64_t StreamShape::row_bytes(Class which) const {
  const ClassTraits& traits = Traits(which);
  if (traits.gated_only && !gated) return 0;
  if (!HasClass(order, which)) return 0;
  // Indexed by Precision, and by Width.
  const int64_t bytes[] = {element, 4, output_element};
  const int64_t widths[] = {hidden, q_heads * dim, kv_heads * dim, ffn,
                            q_heads};
  return bytes[size_t(traits.precision)] * widths[size_t(traits.width)];
}

int64_t StreamShape::stored(Class which, int64_t m) const {
  const ClassTraits& traits = Traits(which);
  if (resident(which, m)) return 0;
  if (!traits.free()) return class_rows(which, m);
  return traits.rows == Rows::kTokens ? present(which, m) - kept(which, m)
                                      : head_stored(which, m);
}

RingSizes StreamShape::rings(Phase phase) const {
  // Return a slot's bytes for all, or the stored, rows of the largest chunk.
  const auto whole = [this](Class which) {
    return AlignSlot(moved_bytes(which, 0));
  };
  const auto part = [this](Class which) {
    return AlignSlot(stored_bytes(which, 0));
  };
  const int64_t q = whole(Class::kQ), o = whole(Class::kO);
  const int64_t kv = whole(Class::kK) + whole(Class::kV);
  const int64_t lse = whole(Class::kLse), x = whole(Class::kInput);
  // The last layer's output is fetched for the largest group of the loss.
  const LossGroup most{0, std::min(loss.chunks, chunks()), true};
  const int64_t y = resident(Class::kInput)
                        ? 0
                        : AlignSlot(loss_rows(most) * row_bytes(Class::kInput));
  const int64_t d_o = whole(Class::kOutputGradient);
  const int64_t queries = q + d_o + o + lse;
  // Returns a chunk's bytes of sums, or 0 if a resident class sums in place.
  const auto sum = [&](Class which, int64_t heads) {
    const bool in_place = resident(which) && row_bytes(which) > 0;
    return in_place ? 0 : AlignSlot(class_rows(which, 0) * heads * dim * 4);
  };
  const bool keys_outer = order == BackwardOrder::kKeysOuter;
  const int64_t norm1 = part(Class::kNorm1);
  const int64_t post = Sum(kPostClasses, part);
  const int64_t dropped = Sum(kHeadClasses, [this](Class which) {
    return AlignSlot(dropped_bytes(which, 0));
  });
  switch (phase) {
    case Phase::kForward:
      return {.staging = q + o + kv + lse + norm1 + post + x,
              .inputs = x,
              .blocks = kv,
              .query_sum = output_element == 4
                               ? 0
                               : AlignSlot(class_rows(Class::kO, 0) * q_heads *
                                           dim * 4)};
    case Phase::kTokens:
      return {.staging = std::max(d_o + x + dropped, y),
              .inputs = std::max(2 * x + o + post, y)};
    case Phase::kAttention:
      return {.staging = x,
              .inputs = 2 * x + norm1,
              .blocks = keys_outer ? queries : kv,
              .gradients = whole(Class::kQueryGradient) +
                           whole(Class::kKeyGradient) +
                           whole(Class::kValueGradient),
              .outer = keys_outer ? kv : queries,
              .query_sum = sum(Class::kQueryGradient, q_heads),
              .key_sum = std::max(sum(Class::kKeyGradient, kv_heads),
                                  sum(Class::kValueGradient, kv_heads))};
  }
  return {};
}

EarlySlots StreamShape::early(Phase phase) const {
  const RingSizes sizes = rings(phase);
  if (chunks() == 1 || phase == Phase::kForward) return {};
  if (phase == Phase::kTokens) {
    const int64_t before = rings(Phase::kAttention).Front();
    // A ring's slots are in reverse order: the first one is last in memory.
    return {.inputs = 2 * sizes.staging + sizes.inputs >= before};
  }
  const int64_t before = rings(Phase::kTokens).Front();
  const auto from_end = [](int64_t room, int64_t slot, int64_t slots) {
    return slot > 0 ? std::clamp<int64_t>(room / slot, 0, slots) : slots;
  };
  const int64_t room = std::max<int64_t>(ring_bytes() - before, 0);
  const int64_t blocks = from_end(room, sizes.blocks, prefetch_depth);
  const int64_t left = room - prefetch_depth * sizes.blocks;
  return {.blocks = blocks,
          .outer = left < 0 ? 0 : from_end(left, sizes.outer, 2)};
}

int64_t StreamShape::ring_bytes() const {
  int64_t most = 0;
  for (const Phase phase : kPhases) {
    most = std::max(most, rings(phase).Total(prefetch_depth));
  }
  return most;
}

int64_t StreamShape::host_bytes() const {
  return SumOverChunks([this](int64_t m) {
    const auto moved = [&](Class c) { return AlignSlot(moved_bytes(c, m)); };
    const auto stored = [&](Class c) { return AlignSlot(stored_bytes(c, m)); };
    const auto dropped = [&](Class c) {
      return AlignSlot(dropped_bytes(c, m));
    };
    return hidden_sets(m) * moved(Class::kInput) +
           saved_sets(m) * Sum(kLayerClasses, stored) +
           moved(Class::kOutputGradient) + Sum(kSums, moved) +
           Sum(kHeadClasses, dropped);
  });
}

int64_t StreamShape::kept_bytes() const {
  return layers * SumOverChunks([this](int64_t m) {
           return Sum(kLayerClasses, [&](Class which) {
             return AlignSlot(kept_bytes(which, m));
           });
         });
}

// Hidden states are contiguous, because the loss takes several chunks together;
// other classes are aligned per chunk.
int64_t StreamShape::resident_bytes() const {
  int64_t sum = 0;
  for (const ClassTraits& c : kClasses) {
    const bool dense = c.which == Class::kInput;
    const int64_t placed = SumOverChunks([&](int64_t m) {
      const int64_t bytes = chunk_bytes(c.which, m) - moved_bytes(c.which, m);
      return dense ? bytes : AlignSlot(bytes);
    });
    const int64_t times = c.life == Life::kLayer  ? layers
                          : c.life == Life::kStep ? layers + 1
                                                  : 1;
    sum += times * (dense ? AlignSlot(placed) : placed);
  }
  return sum;
}

Bytes HostBytes(const StreamOptions& options) {
  return Bytes(StreamShape(options).host_bytes());
}
Bytes RingBytes(const StreamOptions& options) {
  return Bytes(StreamShape(options).ring_bytes());
}
Bytes KeptBytes(const StreamOptions& options) {
  const StreamShape shape(options);
  return Bytes(shape.kept_bytes() + shape.resident_bytes());
}

}  // namespace sluice::stream
