#include "kernels/ops/token_math.h"

#include "kernels/ops/token_forms.h"

namespace sluice::ops {
namespace {

enum class Instructions { kBaseline, kAvx2, kAvx512 };

Instructions OfThisCpu() {
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? Instructions::kAvx512
         : avx2 ? Instructions::kAvx2
                : Instructions::kBaseline;
}

const Instructions instructions = OfThisCpu();

}  // namespace

#define SLUICE_DEFINE(Shape, ...)                          \
  void Compute(const Shape& shape, const __VA_ARGS__& t) { \
    switch (instructions) {                                \
      case Instructions::kBaseline:                        \
        return baseline::Compute(shape, t);                \
      case Instructions::kAvx2:                            \
        return avx2::Compute(shape, t);                    \
      case Instructions::kAvx512:                          \
        return avx512::Compute(shape, t);                  \
    }                                                      \
  }
SLUICE_TOKEN_FORMS(SLUICE_DEFINE)

}  // namespace sluice::ops
