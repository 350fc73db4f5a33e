#include <algorithm>

#include "planner/memory/occupancy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice::planner {
namespace {

// Stores a better gap. Returns true if the gap ends the scan.
bool Meet(int64_t gap, int64_t offset, Scan* scan) {
  if (gap < scan->size || gap >= scan->gap) return false;
  scan->gap = gap;
  scan->offset = offset;
  return gap <= scan->enough;
}

inline bool PassBlock(const ScanBlock& block, size_t k, Scan* scan) {
  if (Meet(block.begin[k] - scan->reach, scan->reach, scan)) return true;
  scan->reach = std::max(scan->reach, block.end[k]);
  return false;
}

bool ScanPortable(const ScanBlock& block, Scan* scan) {
  for (size_t k = 0; k < block.count; ++k) {
    if ((block.lower[k] < scan->upper) & (block.upper[k] > scan->lower)) {
      if (PassBlock(block, k, scan)) return true;
    }
  }
  return false;
}

size_t ListPortable(const ScanBlock& block, int32_t lower, int32_t upper,
                    uint32_t* items) {
  size_t count = 0;
  for (size_t k = 0; k < block.count; ++k) {
    items[count] = block.item[k];
    count += (block.lower[k] < upper) & (block.upper[k] > lower);
  }
  return count;
}

#if defined(__x86_64__)

// Returns which of eight items from `k` on live in slots of [lower, upper).
__attribute__((target("avx2"))) inline unsigned Together(const ScanBlock& block,
                                                         size_t k,
                                                         __m256i lower,
                                                         __m256i upper) {
  const auto* lowers = reinterpret_cast<const __m256i*>(block.lower + k);
  const auto* uppers = reinterpret_cast<const __m256i*>(block.upper + k);
  const __m256i both =
      _mm256_and_si256(_mm256_cmpgt_epi32(upper, _mm256_load_si256(lowers)),
                       _mm256_cmpgt_epi32(_mm256_load_si256(uppers), lower));
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(both)));
}

__attribute__((target("avx2"))) bool ScanAvx2(const ScanBlock& block,
                                              Scan* scan) {
  const __m256i lower = _mm256_set1_epi32(scan->lower);
  const __m256i upper = _mm256_set1_epi32(scan->upper);
  for (size_t k = 0; k < block.count; k += 8) {
    for (unsigned lanes = Together(block, k, lower, upper); lanes != 0;
         lanes &= lanes - 1) {
      const size_t lane = k + static_cast<size_t>(__builtin_ctz(lanes));
      if (PassBlock(block, lane, scan)) return true;
    }
  }
  return false;
}

__attribute__((target("avx2"))) size_t ListAvx2(const ScanBlock& block,
                                                int32_t lower, int32_t upper,
                                                uint32_t* items) {
  const __m256i from = _mm256_set1_epi32(lower);
  const __m256i to = _mm256_set1_epi32(upper);
  size_t count = 0;
  for (size_t k = 0; k < block.count; k += 8) {
    for (unsigned lanes = Together(block, k, from, to); lanes != 0;
         lanes &= lanes - 1) {
      items[count++] =
          block.item[k + static_cast<size_t>(__builtin_ctz(lanes))];
    }
  }
  return count;
}

// The address ranges of a block's items that live in the queried slots.
struct Packed {
  alignas(64) int64_t begin[ScanBlock::kCapacity + 8];
  alignas(64) int64_t end[ScanBlock::kCapacity + 8];
  size_t count = 0;
};

__attribute__((target("avx512f"))) inline void Pack(const ScanBlock& block,
                                                    const Scan& scan,
                                                    Packed* packed) {
  const __m512i lower = _mm512_set1_epi32(scan.lower);
  const __m512i upper = _mm512_set1_epi32(scan.upper);
  size_t count = 0;
  for (size_t k = 0; k < block.count; k += 16) {
    const __mmask16 together =
        _mm512_cmplt_epi32_mask(_mm512_load_si512(block.lower + k), upper) &
        _mm512_cmpgt_epi32_mask(_mm512_load_si512(block.upper + k), lower);
    if (together == 0) continue;
    // There is no branch per half, because it would often be mispredicted.
    for (size_t half = 0; half < 16; half += 8) {
      const auto mask = static_cast<__mmask8>(together >> half);
      const __m512i begins = _mm512_load_si512(block.begin + k + half);
      const __m512i ends = _mm512_load_si512(block.end + k + half);
      _mm512_storeu_si512(packed->begin + count,
                          _mm512_maskz_compress_epi64(mask, begins));
      _mm512_storeu_si512(packed->end + count,
                          _mm512_maskz_compress_epi64(mask, ends));
      count += static_cast<size_t>(__builtin_popcount(mask));
    }
  }
  // Clears the unused lanes of the last eight.
  _mm512_storeu_si512(packed->begin + count, _mm512_setzero_si512());
  _mm512_storeu_si512(packed->end + count, _mm512_setzero_si512());
  packed->count = count;
}

// Returns in lane k the highest of lanes 0 to k. `values` are not negative.
__attribute__((target("avx512f"))) inline __m512i RunningMax(__m512i values) {
  const __m512i zero = _mm512_setzero_si512();
  values = _mm512_max_epi64(values, _mm512_alignr_epi64(values, zero, 7));
  values = _mm512_max_epi64(values, _mm512_alignr_epi64(values, zero, 6));
  return _mm512_max_epi64(values, _mm512_alignr_epi64(values, zero, 4));
}

__attribute__((target("avx512f"))) bool ScanAvx512(const ScanBlock& block,
                                                   Scan* scan) {
  Packed packed;
  Pack(block, *scan, &packed);
  const __m512i zero = _mm512_setzero_si512();
  const __m512i last = _mm512_set1_epi64(7);
  __m512i reach = _mm512_set1_epi64(scan->reach);
  __m512i least = _mm512_set1_epi64(scan->size);
  __m512i most = _mm512_set1_epi64(scan->gap);
  // Lanes after the last item are zero, so they add no gap and no reach.
  for (size_t k = 0; k < packed.count; k += 8) {
    const __m512i begins = _mm512_load_si512(packed.begin + k);
    const __m512i tops = RunningMax(_mm512_load_si512(packed.end + k));
    const __m512i below =
        _mm512_max_epi64(_mm512_alignr_epi64(tops, zero, 7), reach);
    const __m512i gaps = _mm512_sub_epi64(begins, below);
    const __mmask8 found = _mm512_cmpge_epi64_mask(gaps, least) &
                           _mm512_cmplt_epi64_mask(gaps, most);
    if (found != 0) {
      alignas(64) int64_t lengths[8], offsets[8];
      _mm512_store_si512(lengths, gaps);
      _mm512_store_si512(offsets, below);
      for (unsigned lanes = found; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        if (Meet(lengths[lane], offsets[lane], scan)) return true;
      }
      most = _mm512_set1_epi64(scan->gap);
    }
    reach = _mm512_max_epi64(reach, _mm512_permutexvar_epi64(last, tops));
  }
  scan->reach = _mm_cvtsi128_si64(_mm512_castsi512_si128(reach));
  return false;
}

__attribute__((target("avx512f"))) size_t ListAvx512(const ScanBlock& block,
                                                     int32_t lower,
                                                     int32_t upper,
                                                     uint32_t* items) {
  const __m512i from = _mm512_set1_epi32(lower);
  const __m512i to = _mm512_set1_epi32(upper);
  size_t count = 0;
  for (size_t k = 0; k < block.count; k += 16) {
    const __mmask16 together =
        _mm512_cmplt_epi32_mask(_mm512_load_si512(block.lower + k), to) &
        _mm512_cmpgt_epi32_mask(_mm512_load_si512(block.upper + k), from);
    const __m512i some = _mm512_load_si512(block.item + k);
    _mm512_storeu_si512(items + count,
                        _mm512_maskz_compress_epi32(together, some));
    count += static_cast<size_t>(__builtin_popcount(together));
  }
  return count;
}

#endif  // __x86_64__

}  // namespace

const std::vector<ScanFunctions>& Scans() {
  static const std::vector<ScanFunctions> kScans = [] {
    std::vector<ScanFunctions> scans;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
      scans.push_back({"avx512", &ScanAvx512, &ListAvx512});
    }
    if (__builtin_cpu_supports("avx2")) {
      scans.push_back({"avx2", &ScanAvx2, &ListAvx2});
    }
#endif
    scans.push_back({"portable", &ScanPortable, &ListPortable});
    return scans;
  }();
  return kScans;
}

}  // namespace sluice::planner
