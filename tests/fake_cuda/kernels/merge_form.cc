// kernels/ops/merge.cu, compiled for the CPU. Each SLUICE_SEED_… plants one
// defect, to check that the merge's tests find it.
// clang-format off
#include "tests/fake_cuda/kernels/language.h"
#ifdef SLUICE_SEED_LOGF
#define log1pf(x) logf(x)
#endif
#ifdef SLUICE_SEED_NO_SYNCWARP
#define __syncwarp() static_cast<void>(0)
#endif
#include "kernels/ops/merge.cu"
// clang-format on

#include <string_view>

#include "tests/fake_cuda/kernels/token_form.h"

namespace sluice::fake_cuda {
namespace {

#ifdef SLUICE_SEED_BEYOND
constexpr bool kWritesBeyond = true;
#else
constexpr bool kWritesBeyond = false;
#endif

using ops::BFloat16;
using ops::MergeShape;
using ops::RowHeadStrides;

template <typename T>
const T& At(void* const* arguments, int i) {
  return *static_cast<const T*>(arguments[i]);
}

// Returns all bytes from the first element to the last.
template <typename T>
Access Span(const T* start, const MergeShape& shape, const RowHeadStrides& by,
            int64_t dim, bool writes) {
  const int64_t elements =
      (shape.rows - 1) * by.row + (shape.heads - 1) * by.head + dim;
  return {start, static_cast<size_t>(elements) * sizeof(T), writes};
}

template <typename T>
std::vector<Access> MergeAccesses(void* const* arguments) {
  const auto& shape = At<MergeShape>(arguments, 0);
  return {
      Span(At<float*>(arguments, 1), shape, shape.o, shape.dim, true),
      Span(At<float*>(arguments, 2), shape, shape.lse, 1, true),
      Span(At<const T*>(arguments, 3), shape, shape.block_o, shape.dim, false),
      Span(At<const float*>(arguments, 4), shape, shape.block_lse, 1, false)};
}

template <typename T>
KernelForm MergeForm(void (*kernel)(MergeShape, float*, float*, const T*,
                                    const float*)) {
  return {
      {sizeof(MergeShape), sizeof(void*), sizeof(void*), sizeof(void*),
       sizeof(void*)},
      MergeAccesses<T>,
      [kernel](const Grid& grid, void* const* arguments, const Views& views) {
        const auto& shape = At<MergeShape>(arguments, 0);
        RunGrid(grid, [&] {
          kernel(shape, reinterpret_cast<float*>(views[0]),
                 reinterpret_cast<float*>(views[1]),
                 reinterpret_cast<const T*>(views[2]),
                 reinterpret_cast<const float*>(views[3]));
        });
        if (kWritesBeyond) {
          const Access o = MergeAccesses<T>(arguments)[0];
          *reinterpret_cast<float*>(views[0] + o.size) = 0;
        }
      }};
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const KernelForm*
fake_cuda_kernel_form(const char* name) {
  static const KernelForm fp32 = MergeForm<float>(sluice_merge_fp32);
  static const KernelForm bf16 = MergeForm<BFloat16>(sluice_merge_bf16);
  const std::string_view wanted = name;
  return wanted == "sluice_merge_fp32"   ? &fp32
         : wanted == "sluice_merge_bf16" ? &bf16
                                         : TokenForm(wanted);
}

}  // namespace sluice::fake_cuda
