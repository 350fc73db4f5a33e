#include "planner/stream/profile.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "planner/stream/layer_time.h"

namespace sluice::stream {
namespace {

// Returns the operations per row that make a free class over all heads, which
// give its share of the segment's time. Elementwise kernels count as eight
// operations per element.
double RowOperations(const ModelShape& model, Class which) {
  const double h = double(model.hidden), f = double(model.ffn);
  const double q = double(model.query_width()), k = double(model.key_width());
  switch (which) {
    case Class::kNorm1:
    case Class::kNorm2:
      return 8 * h;
    case Class::kQ:
    case Class::kX2:
      return 2 * h * q;
    case Class::kK:
    case Class::kV:
      return 2 * h * k;
    case Class::kUp:
      return 2 * h * f;
    case Class::kGate:
      return model.gated ? 2 * h * f : 0;
    case Class::kAct:
      return 8 * f;
    default:
      return 0;  // never recomputed
  }
}

double RowOperations(const ModelShape& model, Segment segment) {
  // post.forward also has the down projection, which is never recomputed.
  double sum = segment == Segment::kPostForward
                   ? 2 * double(model.hidden) * double(model.ffn)
                   : 0;
  for (const Class which : kFreeClasses) {
    if (Traits(which).made_by == segment) sum += RowOperations(model, which);
  }
  return sum;
}

class ProfileBuilder {
 public:
  ProfileBuilder(const StreamOptions& options,
                 const std::vector<plan::SegmentKind>& recorded)
      : options_(options),
        shape_(options),
        recorded_(recorded),
        seconds_(recorded) {}

  plan::RankProfile Build() {
    layer().layers = shape_.layers;
    AddSegments();
    AddClasses();
    AddTraffic();
    profile_.keep_reserve = KeepReserve();
    return std::move(profile_);
  }

 private:
  // A trainer's models have only one kind of layer.
  plan::LayerKind& layer() { return profile_.kinds[0]; }

  void AddSegments() {
    std::map<std::string, int64_t> executions;  // per step, by kind
    for (const SegmentTraits& segment : kSegments) {
      const Executions count = CountExecutions(shape_, segment.which);
      const int64_t times = segment.part == Part::kStep ? 1 : shape_.layers;
      const Executions rerun = CountRerun(shape_, segment.which);
      executions[KindOf(segment.which, true)] = times * count.full + rerun.full;
      executions[KindOf(segment.which, false)] =
          times * count.tail + rerun.tail;
      const double seconds = seconds_.Of(segment.which, count);
      if (segment.part == Part::kForward) {
        layer().forward_layer_seconds += seconds;
        layer().backward_layer_seconds +=
            seconds_.Of(segment.which, rerun) / double(shape_.layers);
      }
      if (segment.part == Part::kBackward) {
        layer().backward_layer_seconds += seconds;
      }
    }
    for (plan::SegmentKind kind : recorded_) {
      const auto found = executions.find(kind.name);
      kind.executions = found != executions.end() ? found->second : 0;
      profile_.segments.push_back(std::move(kind));
    }
  }

  double RecomputeSeconds(Class which) const {
    const Segment segment = *Traits(which).made_by;
    return seconds_.Of(segment, CountExecutions(shape_, segment)) *
           RowOperations(options_.model, which) /
           RowOperations(options_.model, segment);
  }

  // Returns the bytes of a class in one layer's own memory, without chunks that
  // run again and resident chunks of a class that is resident in part.
  int64_t OwnBytes(Class which) const {
    if (Traits(which).free() || shape_.resident(which)) {
      return shape_.class_bytes(which);
    }
    return shape_.SumOverChunks([&](int64_t m) {
      return shape_.reruns(m) ? 0 : shape_.moved_bytes(which, m);
    });
  }

  void AddClasses() {
    profile_.classes.push_back(
        {.name = Traits(Class::kInput).name,
         .bytes_per_layer = Bytes(OwnBytes(Class::kInput)),
         .must_swap = !shape_.resident(Class::kInput),
         .can_keep = shape_.resident(Class::kInput)});
    for (const Class which : kLayerClasses) {
      if (shape_.row_bytes(which) == 0) continue;
      const ClassTraits& traits = Traits(which);
      // Rows of k and v are sent for later chunks even if kept or recomputed,
      // and rows of q, k and v are fetched block by block.
      const bool fixed_traffic = traits.shared();
      const bool resident = shape_.resident(which);
      profile_.classes.push_back(
          {.name = traits.name,
           .bytes_per_layer = Bytes(OwnBytes(which)),
           .recompute_seconds = traits.free() ? RecomputeSeconds(which) : 0,
           .must_swap = !traits.free() && !resident,
           .traffic_in_fixed = fixed_traffic,
           .shared = traits.shared(),
           .can_keep = traits.keep == Keep::kRows || resident});
    }
  }

  // Returns the bytes that rounding and alignment add to the classes.
  Bytes Rounding() const {
    int64_t chunk = 0;
    for (const Class which : kLayerClasses) {
      const int64_t roundings =
          Traits(which).rows == Rows::kTokens ? 1 : shape_.ranks;
      chunk += kSlotAlignment + (shape_.row_bytes(which) * roundings + 1) / 2;
    }
    return Bytes((shape_.layers + 1) * shape_.chunks() *
                 (chunk + kSlotAlignment));
  }

  // Returns the HBM of resident data in no class of the profile: scratch, the
  // last layer's output, alignment.
  int64_t KeptBesideClasses() const {
    int64_t beside = shape_.resident_bytes();
    for (const ClassTraits& c : kClasses) {
      if (c.life == Life::kScratch || !shape_.resident(c.which)) continue;
      beside -= shape_.layers * shape_.class_bytes(c.which);
    }
    return beside;
  }

  // Returns the HBM that keeping rows may need in addition to the rows:
  // alignment per chunk, ring slots of fetched rows, and transient memory of a
  // block of recomputed rows.
  Bytes KeepReserve() const {
    const auto rings = [this](double heads) {
      StreamOptions options = options_;
      options.alpha = 1;
      std::erase_if(options.fractions, [this](const auto& f) {
        return !shape_.resident(FindClass(f.first)->which);
      });
      for (const Class which : kHeadClasses) {
        options.fractions.try_emplace(Traits(which).name,
                                      ClassFractions{0, heads});
      }
      return StreamShape(options).ring_bytes();
    };
    const int64_t ring_growth = std::max<int64_t>(
        0, std::max(rings(0), rings(1)) - shape_.ring_bytes());
    const int64_t block =
        shape_.ffn_rows * (2 * shape_.hidden + 3 * shape_.ffn) * shape_.element;
    const int64_t alignment = shape_.layers * shape_.chunks() * kSlotAlignment *
                              static_cast<int64_t>(std::size(kFreeClasses));
    return Bytes(alignment + ring_growth + block + KeptBesideClasses() +
                 2 * shape_.chunk_bytes(Class::kInput, 0));
  }

  void AddTraffic() {
    const LayerTraffic traffic = FixedTraffic(shape_);
    layer().forward_d2h_fixed = Bytes(traffic.forward.out);
    layer().forward_h2d_fixed = Bytes(traffic.forward.in);
    layer().backward_h2d_fixed =
        Bytes(traffic.rerun.in + traffic.tokens.in + traffic.blocks.in);
    layer().backward_d2h_fixed =
        Bytes(traffic.rerun.out + traffic.tokens.out + traffic.blocks.out);
    const int64_t rerun = shape_.SumOverChunks([this](int64_t m) {
      if (!shape_.reruns(m)) return int64_t{0};
      return (shape_.hidden_sets(m) - 1) *
                 shape_.moved_bytes(Class::kInput, m) +
             shape_.saved_sets(m) * (shape_.moved_bytes(Class::kO, m) +
                                     shape_.moved_bytes(Class::kLse, m));
    });
    // Counts the last layer's output, chunks that run again, and scratch: the
    // sums, dO, and all rows of q, k and v, as if they were dropped.
    profile_.host_fixed = Bytes(rerun + shape_.moved_bytes(Class::kInput) +
                                shape_.moved_bytes(kSums) +
                                shape_.moved_bytes(Class::kOutputGradient) +
                                shape_.moved_bytes(kHeadClasses)) +
                          Rounding();
  }

  const StreamOptions& options_;
  const StreamShape shape_;
  const std::vector<plan::SegmentKind>& recorded_;
  const RecordedSeconds seconds_;
  plan::RankProfile profile_;
};

// Returns the seconds on a full chunk, or else on the tail, or 0.
double Once(const std::vector<plan::SegmentKind>& recorded, Segment which) {
  for (const bool full : {true, false}) {
    const auto found = std::ranges::find(recorded, KindOf(which, full),
                                         &plan::SegmentKind::name);
    if (found != recorded.end()) return found->seconds;
  }
  return 0;
}

}  // namespace

plan::RankProfile Profile(const StreamOptions& options,
                          const std::vector<plan::SegmentKind>& recorded) {
  return ProfileBuilder(options, recorded).Build();
}

std::vector<CopyDue> CopiesDue(const StreamOptions& options,
                               const std::vector<plan::SegmentKind>& recorded) {
  const auto once = [&](Segment which) { return Once(recorded, which); };
  // In rings of two slots, the next chunk is fetched and the one before is sent
  // while a chunk is computed. A layer of one chunk has no such compute.
  const double next = options.layout.chunks() > 1 ? 1 : 0;
  // The first chunk, and backward's last outer one, have one block only.
  const double forward =
      next * (once(Segment::kQkvForward) + once(Segment::kDiagonalForward) +
              once(Segment::kPostForward));
  const double tokens =
      next * (once(Segment::kPostBackward) + once(Segment::kQkvRecompute));
  const double outer =
      next * (once(Segment::kDiagonalBackward) + once(Segment::kQkvBackward));
  // Slots of the block ring, except the one in use.
  const double others = options.prefetch_depth - 1;
  const double block = others * once(Segment::kOffdiagonalForward);
  const double inner = others * once(Segment::kOffdiagonalBackward);
  const double loss = next * once(Segment::kLoss);
  return {{"embedding out", next * once(Segment::kEmbedForward)},
          {"x", forward},
          {"k, v", block},
          {"q, k, v out", forward},
          {"o, lse out", forward},
          {"layer out", forward},
          {"y", loss},
          {"dY out", loss},
          {"saved rows", tokens},
          {"dO, dX out", tokens},
          {"q, k, v again", tokens},
          {"outer chunk", outer},
          {"inner chunk", inner},
          {"gradients of inner chunk", inner},
          {"x, dX", outer},
          {"dX out", outer},
          {"dX", next * once(Segment::kEmbedBackward)}};
}

StepPrice PriceOf(const StreamOptions& options,
                  const plan::RankProfile& profile) {
  const FractionMap fractions =
      FillFractions(options.model, options.fractions, options.alpha);
  StreamOptions whole = options;  // without recomputation
  whole.rerun_chunks = 0;
  whole.fractions = fractions;
  for (auto& [name, f] : whole.fractions) f.swap = 1 - f.keep;
  StepPrice price{.hbm = KeptBytes(options), .host = HostBytes(options)};
  price.recomputed =
      KeptBytes(whole) + HostBytes(whole) - price.hbm - price.host;
  for (const plan::SkeletalClass& c : profile.classes) {
    const auto found = fractions.find(c.name);
    if (found == fractions.end()) continue;
    price.recompute_s += static_cast<double>(plan::KindOf(profile, c).layers) *
                         c.recompute_seconds *
                         (1 - found->second.keep - found->second.swap);
  }
  std::map<std::string, int64_t> rerun;  // executions
  const StreamShape shape(options);
  for (const SegmentTraits& segment : kSegments) {
    const Executions count = CountRerun(shape, segment.which);
    rerun[KindOf(segment.which, true)] = count.full;
    rerun[KindOf(segment.which, false)] = count.tail;
  }
  for (const plan::SegmentKind& kind : profile.segments) {
    const auto found = rerun.find(kind.name);
    if (found == rerun.end()) continue;
    price.recompute_s += kind.seconds * static_cast<double>(found->second);
  }
  return price;
}

}  // namespace sluice::stream
