#include "planner/stream/states.h"

#include <algorithm>

namespace sluice::stream {
namespace {

constexpr int64_t kLine = 64 / 4;  // in elements of fp32

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The last one may be smaller.
int64_t BucketSize(int64_t elements, int ranks, Dealing dealing) {
  if (dealing == Dealing::kMebibytes) return kBucketElements;
  const int64_t rounds =
      std::max<int64_t>(DivideUp(elements, kBucketElements * ranks), 1);
  // Whole cache lines.
  return DivideUp(DivideUp(elements, rounds * ranks), kLine) * kLine;
}

// A tensor as the region allocator has it.
Bytes Lines(int64_t bytes) { return Bytes(DivideUp(bytes, 64) * 64); }

}  // namespace

std::vector<Bucket> CutBuckets(int64_t elements, int ranks, Dealing dealing) {
  const int64_t size = BucketSize(elements, ranks, dealing);
  std::vector<Bucket> buckets;
  for (int64_t at = 0; at < elements; at += size) {
    buckets.push_back({at, std::min(size, elements - at),
                       static_cast<int>(buckets.size()) % ranks});
  }
  return buckets;
}

int64_t OwnedElements(int64_t elements, int ranks, int rank) {
  const int64_t size = BucketSize(elements, ranks, Dealing::kEven);
  const int64_t buckets = DivideUp(elements, size);
  const int64_t own = buckets > rank ? DivideUp(buckets - rank, ranks) : 0;
  const bool last = own > 0 && (buckets - 1) % ranks == rank;
  return own * size - (last ? buckets * size - elements : 0);
}

const char* Name(StatePlace place) {
  return place == StatePlace::kHbm ? "hbm" : "host";
}

int StateTensors(Dtype dtype) { return dtype == Dtype::kFp32 ? 2 : 3; }

std::vector<int64_t> PartSizes(const ModelShape& model) {
  const int64_t layer = model.layer_parameters();
  std::vector<int64_t> parts(static_cast<size_t>(model.layers) + 2, layer);
  parts.front() = (model.vocab + model.max_positions) * model.hidden;
  parts.back() =
      model.trained_parameters() - parts.front() - model.layers * layer;
  return parts;
}

int64_t SlotElements(const ModelShape& model, Dtype dtype, int ranks,
                     int rank) {
  const int64_t elements = model.trained_parameters();
  const int64_t bucket = BucketSize(elements, ranks, Dealing::kEven);
  const int64_t part = std::ranges::max(PartSizes(model));
  // Own buckets that a part of this size can reach into.
  const int64_t own = (DivideUp(part, bucket * ranks) + 1) * bucket;
  const int64_t most =
      kMostUnitBytes.count() / (4 * StateTensors(dtype)) / kLine * kLine;
  return DivideUp(
             std::min({most, part, own, OwnedElements(elements, ranks, rank)}),
             kLine) *
         kLine;
}

std::vector<StateUnit> CutStates(const ModelShape& model, Dtype dtype,
                                 int ranks, int rank) {
  const int64_t most = SlotElements(model, dtype, ranks, rank);
  const std::vector<int64_t> parts = PartSizes(model);
  std::vector<StateUnit> units;
  int64_t part = 0, part_end = parts[0], own = 0;
  for (const Bucket& bucket : CutBuckets(model.trained_parameters(), ranks)) {
    if (bucket.owner != rank) continue;
    const int64_t end = bucket.offset + bucket.size;
    for (int64_t at = bucket.offset; at < end;) {
      while (part_end <= at) part_end += parts[static_cast<size_t>(++part)];
      const int64_t n = std::min(end, part_end) - at;
      const bool joins = !units.empty() && units.back().part == part &&
                         units.back().size + n <= most;
      if (!joins) units.push_back({part, own, 0});
      units.back().size += n;
      own += n;
      at += n;
    }
  }
  return units;
}

StateBytes CountStates(const ModelShape& model, Dtype dtype, int ranks,
                       int rank, StatePlace place) {
  const int64_t elements = model.trained_parameters();
  const int64_t owned = OwnedElements(elements, ranks, rank);
  const int states = StateTensors(dtype);
  StateBytes bytes{.weights = Lines(elements * ElementBytes(dtype)),
                   .gradients = Lines(elements * 4)};
  const Bytes all = states * Lines(owned * 4);
  const Bytes count = Lines(4);  // of steps, the kernel's
  if (place == StatePlace::kHbm) {
    bytes.optimizer = all + count;
    return bytes;
  }
  const int64_t slot = SlotElements(model, dtype, ranks, rank);
  bytes.optimizer = Lines(kStateSlots * states * slot * 4) + count;
  bytes.host = all;
  return bytes;
}

}  // namespace sluice::stream
