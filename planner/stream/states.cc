#include "planner/stream/states.h"

#include <algorithm>

namespace sluice::stream {
namespace {

constexpr int64_t kLine = 64 / 4;  // in elements of fp32

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the size of equal buckets of whole lines: at most `most`, and the
// same number for each rank. The last bucket may be smaller.
int64_t BucketSize(int64_t elements, int ranks, int64_t most) {
  const int64_t rounds = std::max<int64_t>(DivideUp(elements, most * ranks), 1);
  return DivideUp(DivideUp(elements, rounds * ranks), kLine) * kLine;
}

std::vector<Bucket> Cut(int64_t offset, int64_t end, int64_t size, int ranks) {
  std::vector<Bucket> buckets;
  for (int64_t at = offset; at < end; at += size) {
    buckets.push_back({at, std::min(size, end - at),
                       static_cast<int>(std::ssize(buckets) % ranks)});
  }
  return buckets;
}

int64_t OwnedOfPart(int64_t elements, int ranks, int rank) {
  const int64_t size = BucketSize(elements, ranks, kBucketElements);
  const int64_t buckets = DivideUp(elements, size);
  const int64_t own = buckets > rank ? DivideUp(buckets - rank, ranks) : 0;
  const bool last = (buckets - 1) % ranks == rank;
  return own * size - (last ? buckets * size - elements : 0);
}

// Rounds a tensor's bytes up as the region allocator does.
Bytes Lines(int64_t bytes) { return Bytes(DivideUp(bytes, 64) * 64); }

}  // namespace

std::vector<Round> CutRounds(const ModelShape& model, int ranks) {
  std::vector<Round> rounds;
  int64_t part = 0, begin = 0;
  for (const int64_t elements : PartSizes(model)) {
    const int64_t size = BucketSize(elements, ranks, kBucketElements);
    const int64_t end = begin + elements;
    for (int64_t at = begin; at < end; at += size * ranks) {
      const int64_t round_end = std::min(at + size * ranks, end);
      rounds.push_back({part, Cut(at, round_end, size, ranks),
                        round_end - at == size * ranks});
    }
    begin = end;
    ++part;
  }
  return rounds;
}

std::vector<Bucket> CutBuckets(const ModelShape& model, int ranks) {
  std::vector<Bucket> buckets;
  for (const Round& round : CutRounds(model, ranks)) {
    buckets.insert(buckets.end(), round.buckets.begin(), round.buckets.end());
  }
  return buckets;
}

std::vector<Bucket> CutFormerBuckets(int64_t elements, int ranks,
                                     FormerDealing dealing) {
  constexpr int64_t kMost = (1 << 20) / 4;
  return Cut(0, elements,
             dealing == FormerDealing::kEven
                 ? BucketSize(elements, ranks, kMost)
                 : kMost,
             ranks);
}

int64_t OwnedElements(const ModelShape& model, int ranks, int rank) {
  int64_t owned = 0;
  for (const int64_t part : PartSizes(model)) {
    owned += OwnedOfPart(part, ranks, rank);
  }
  return owned;
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
  int64_t own = 0;
  for (const int64_t part : PartSizes(model)) {
    own = std::max(own, OwnedOfPart(part, ranks, rank));
  }
  const int64_t most =
      kMostUnitBytes.count() / (4 * StateTensors(dtype)) / kLine * kLine;
  return DivideUp(std::min(most, own), kLine) * kLine;
}

std::vector<StateUnit> CutStates(const ModelShape& model, Dtype dtype,
                                 int ranks, int rank) {
  const int64_t most = SlotElements(model, dtype, ranks, rank);
  std::vector<StateUnit> units;
  int64_t part = 0, at = 0;
  for (const int64_t elements : PartSizes(model)) {
    const int64_t end = at + OwnedOfPart(elements, ranks, rank);
    for (; at < end; at += units.back().size) {
      units.push_back({part, at, std::min(most, end - at)});
    }
    ++part;
  }
  return units;
}

StateBytes CountStates(const ModelShape& model, Dtype dtype, int ranks,
                       int rank, StatePlace place) {
  const int64_t elements = model.trained_parameters();
  const int64_t owned = OwnedElements(model, ranks, rank);
  const int states = StateTensors(dtype);
  StateBytes bytes{.weights = Lines(elements * ElementBytes(dtype)),
                   .gradients = Lines(elements * 4)};
  const Bytes all = states * Lines(owned * 4);
  const Bytes count = Lines(4);  // the kernel's step counter
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
