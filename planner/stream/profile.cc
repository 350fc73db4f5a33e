#include "planner/stream/profile.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "planner/stream/stream_shape.h"

namespace sluice::stream {
namespace {

// Full chunks and shorter ones (none or one).
struct Chunks {
  int64_t full = 0, tail = 0;
};

Chunks CountChunks(const StreamShape& shape) {
  Chunks count;
  for (int64_t m = 0; m < shape.chunks(); ++m) {
    ++(shape.full(m) ? count.full : count.tail);
  }
  return count;
}

// How often one layer (or, for what is no part of a layer, one step) runs each
// segment kind.
struct Executions {
  std::map<std::string, int64_t> forward, backward, outside;
};

Executions CountExecutions(const StreamShape& shape) {
  const auto [full, tail] = CountChunks(shape);
  Executions count;
  const auto add = [&](std::map<std::string, int64_t>& to, const char* kind) {
    to[std::string(kind) + ".full"] = full;
    to[std::string(kind) + ".tail"] = tail;
  };
  for (const char* kind :
       {"qkv.forward", "block.diagonal.forward", "post.forward"}) {
    add(count.forward, kind);
  }
  for (const char* kind : {"post.backward", "qkv.recompute",
                           "block.diagonal.backward", "qkv.backward"}) {
    add(count.backward, kind);
  }
  for (const char* kind : {"embed.forward", "embed.backward"}) {
    add(count.outside, kind);
  }
  for (const LossGroup& group : GroupChunks(shape.layout, shape.loss.chunks)) {
    ++count.outside[std::string("loss") + Suffix(group.full)];
  }
  const int64_t pairs = full * (full - 1) / 2;
  count.forward["block.offdiagonal.forward.full"] = pairs;
  count.forward["block.offdiagonal.forward.tail"] = full * tail;
  count.backward["block.offdiagonal.backward.full"] = pairs;
  count.backward["block.offdiagonal.backward.tail"] = full * tail;
  return count;
}

int64_t CountOf(const std::map<std::string, int64_t>& counts,
                const std::string& kind) {
  const auto found = counts.find(kind);
  return found == counts.end() ? 0 : found->second;
}

// Seconds of one execution, by kind.
using Seconds = std::map<std::string, double>;

double Sum(const Seconds& seconds,
           const std::map<std::string, int64_t>& counts) {
  double sum = 0;
  for (const auto& [kind, count] : counts) {
    const auto found = seconds.find(kind);
    if (found != seconds.end()) {
      sum += found->second * static_cast<double>(count);
    }
  }
  return sum;
}

double SumOf(const Seconds& seconds,
             const std::map<std::string, int64_t>& counts,
             const std::string& kind) {
  return Sum(seconds, {{kind + ".full", CountOf(counts, kind + ".full")},
                       {kind + ".tail", CountOf(counts, kind + ".tail")}});
}

// A class's share of the time of the segment that makes it, by the arithmetic
// of a row (elementwise work counted as eight operations an element).
struct Share {
  const char* segment;
  double operations;
};

Share ShareOf(const StreamShape& shape, Saved which, double q_width,
              double kv_width) {
  const auto h = static_cast<double>(shape.hidden);
  const auto f = static_cast<double>(shape.ffn);
  switch (which) {
    case Saved::kNorm1:
      return {"qkv.forward", 8 * h};
    case Saved::kQ:
      return {"qkv.forward", 2 * h * q_width};
    case Saved::kK:
    case Saved::kV:
      return {"qkv.forward", 2 * h * kv_width};
    case Saved::kX2:
      return {"post.forward", 2 * h * h};
    case Saved::kNorm2:
      return {"post.forward", 8 * h};
    case Saved::kUp:
      return {"post.forward", 2 * h * f};
    case Saved::kGate:
      return {"post.forward", shape.gated ? 2 * h * f : 0};
    case Saved::kAct:
      return {"post.forward", 8 * f};
    case Saved::kO:
    case Saved::kLse:
      break;  // never recomputed
  }
  return {"", 0};
}

class ProfileBuilder {
 public:
  ProfileBuilder(const StreamOptions& options,
                 const std::vector<plan::SegmentKind>& recorded)
      : options_(options), shape_(options), counts_(CountExecutions(shape_)) {
    profile_.layers = shape_.layers;
    for (plan::SegmentKind kind : recorded) {
      seconds_[kind.name] = kind.seconds;
      kind.executions = shape_.layers * (CountOf(counts_.forward, kind.name) +
                                         CountOf(counts_.backward, kind.name)) +
                        CountOf(counts_.outside, kind.name);
      profile_.segments.push_back(std::move(kind));
    }
  }

  plan::RankProfile Build() {
    Classes();
    Traffic();
    profile_.keep_reserve = KeepReserve();
    profile_.forward_layer_seconds = Sum(seconds_, counts_.forward);
    profile_.backward_layer_seconds = Sum(seconds_, counts_.backward);
    return std::move(profile_);
  }

 private:
  // Bytes of a class a layer, all its rows.
  int64_t Whole(Saved which) const {
    const SavedClass info = shape_.saved(which);
    int64_t rows = 0;
    for (int64_t m = 0; m < shape_.chunks(); ++m) {
      rows += info.head_layout ? shape_.rows(m) : shape_.local(m);
    }
    return rows * info.row_bytes;
  }
  int64_t Hidden() const { return Whole(Saved::kNorm1); }
  void Classes();
  void Traffic();
  double RecomputeSeconds(Saved which) const;
  Bytes Rounding() const;
  Bytes KeepReserve() const;

  const StreamOptions& options_;
  const StreamShape shape_;
  const Executions counts_;
  Seconds seconds_;
  plan::RankProfile profile_;
};

double ProfileBuilder::RecomputeSeconds(Saved which) const {
  const ModelShape& model = options_.model;
  const auto dim = static_cast<double>(model.head_dim());
  const double q_width = dim * static_cast<double>(model.heads);
  const double kv_width = dim * static_cast<double>(model.kv_heads);
  const Share mine = ShareOf(shape_, which, q_width, kv_width);
  if (mine.operations == 0) return 0;
  // post.forward also projects back down, which nothing recomputes.
  double all = std::string(mine.segment) == "post.forward"
                   ? 2.0 * static_cast<double>(shape_.hidden * shape_.ffn)
                   : 0;
  for (const Saved other : kAllSaved) {
    const Share share = ShareOf(shape_, other, q_width, kv_width);
    if (std::string(share.segment) == mine.segment) all += share.operations;
  }
  return SumOf(seconds_, counts_.forward, mine.segment) * mine.operations / all;
}

void ProfileBuilder::Classes() {
  profile_.classes.push_back({.name = "layer_input",
                              .bytes_per_layer = Bytes(Hidden()),
                              .must_swap = true});
  for (const Saved which : kAllSaved) {
    const SavedClass info = shape_.saved(which);
    if (info.row_bytes == 0) continue;
    // q, k, v move the same bytes whatever stays: k and v go out for later
    // chunks, and block by block all are fetched, kept or recomputed.
    const bool fixed_traffic =
        which == Saved::kQ || which == Saved::kK || which == Saved::kV;
    const FreeClass* free = FindFreeClass(info.name);
    profile_.classes.push_back({.name = info.name,
                                .bytes_per_layer = Bytes(Whole(which)),
                                .recompute_seconds = RecomputeSeconds(which),
                                .must_swap = info.whole,
                                .traffic_in_fixed = fixed_traffic,
                                .shared = free != nullptr && free->shared,
                                .can_keep = free != nullptr && free->can_keep});
  }
}

// Rows are rounded and buffers aligned a chunk at a time, which classes do not
// tell.
Bytes ProfileBuilder::Rounding() const {
  int64_t chunk = 0;
  for (const Saved which : kAllSaved) {
    const SavedClass info = shape_.saved(which);
    const int64_t roundings = info.head_layout ? shape_.ranks : 1;
    chunk += kSlotAlignment + (info.row_bytes * roundings + 1) / 2;
  }
  return Bytes((shape_.layers + 1) * shape_.chunks() *
               (chunk + kSlotAlignment));
}

// Kept rows are aligned a chunk at a time. Rings and transient buffers may be
// larger than they were: rows that are fetched need places in rings, rows that
// are computed again a block's transient places.
Bytes ProfileBuilder::KeepReserve() const {
  const auto rings = [this](double heads) {
    StreamOptions options = options_;
    options.alpha = 1;
    options.fractions.clear();
    for (const FreeClass& c : kFreeClasses) {
      if (c.shared) options.fractions[c.name] = {0, heads};
    }
    return StreamShape(options).ring_bytes();
  };
  const int64_t ring_growth =
      std::max<int64_t>(0, std::max(rings(0), rings(1)) - shape_.ring_bytes());
  const int64_t block =
      shape_.ffn_rows * (2 * shape_.hidden + 3 * shape_.ffn) * shape_.element;
  const int64_t alignment = shape_.layers * shape_.chunks() * kSlotAlignment *
                            static_cast<int64_t>(std::size(kFreeClasses));
  return Bytes(alignment + ring_growth + block + 2 * shape_.hidden_bytes(0));
}

void ProfileBuilder::Traffic() {
  const int64_t q = Whole(Saved::kQ), kv = 2 * Whole(Saved::kK);
  const int64_t lse = Whole(Saved::kLse);
  const int64_t x = Hidden();
  int64_t dq = 0, keys_again = 0, queries = 0, gradients = 0;
  for (int64_t m = 0; m < shape_.chunks(); ++m) {
    const int64_t later = shape_.chunks() - 1 - m;
    dq += shape_.query_gradient_bytes(m);
    keys_again += later * 2 * shape_.rows(m) * shape_.key_row_bytes();
    queries += (m + 1) * shape_.rows(m) *
               (2 * shape_.query_row_bytes() + shape_.output_row_bytes() +
                shape_.q_heads * 4);
    gradients += m * shape_.query_gradient_bytes(m);
  }
  // Forward out: k, v, and q as if all of it stayed. In: x, and k, v of
  // earlier chunks for each later one.
  profile_.forward_d2h_fixed = Bytes(q + kv);
  profile_.forward_h2d_fixed = Bytes(x + keys_again);
  // Backward in, beside each class once: dY; x and dX2 for the projections; k,
  // v; a query chunk's q, o, lse and dO for each block, and dq but for the
  // first. Out: dO, dX2, dX, dq of every block but the diagonal, and q, k, v
  // as if all of them were recomputed.
  profile_.backward_h2d_fixed = Bytes(3 * x + kv + queries + gradients - lse);
  profile_.backward_d2h_fixed = Bytes(2 * q + 2 * x + gradients + kv);
  profile_.host_fixed = Bytes(x + dq + 2 * q + kv) + Rounding();
}

}  // namespace

plan::RankProfile Profile(const StreamOptions& options,
                          const std::vector<plan::SegmentKind>& recorded) {
  return ProfileBuilder(options, recorded).Build();
}

}  // namespace sluice::stream
