// Compares api.h with NVIDIA's nccl.h, if that header is found: the result and
// parameters of each function, and some values, sizes and offsets.
#define SLUICE_FAKE_NCCL_ONLY_TYPES
#include <nccl.h>

#include <type_traits>

#include "tests/fake_cuda/nccl/api.h"

namespace sluice::fake_nccl {
namespace {

// Any pointer counts as a void*, an enum as an int, a class as its size.
template <size_t size>
struct Bytes {};
template <typename T>
using Shape = std::conditional_t<
    std::is_pointer_v<T>, void*,
    std::conditional_t<
        std::is_enum_v<T>, int,
        std::conditional_t<std::is_class_v<T>, Bytes<sizeof(T)>, T>>>;
template <typename F>
struct ShapeOf;
template <typename R, typename... P>
struct ShapeOf<R(P...)> {
  using Type = Shape<R>(Shape<P>...);
};

#define SLUICE_SAME_SHAPE(name, ...)                            \
  static_assert(std::is_same_v<ShapeOf<decltype(::name)>::Type, \
                               ShapeOf<Result(__VA_ARGS__)>::Type>);
SLUICE_FAKE_NCCL_FUNCTIONS(SLUICE_SAME_SHAPE)
#undef SLUICE_SAME_SHAPE

static_assert(kRemoteError == static_cast<int>(ncclRemoteError));
static_assert(kInvalidUsage == static_cast<int>(ncclInvalidUsage));
static_assert(kInProgress == static_cast<int>(ncclInProgress));
static_assert(kBfloat16 == static_cast<int>(ncclBfloat16));
static_assert(kDataTypes == static_cast<int>(ncclNumTypes));
static_assert(kMax == static_cast<int>(ncclMax));
static_assert(kReductions == static_cast<int>(ncclNumOps));
static_assert(sizeof(UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(kVersion == NCCL_VERSION_CODE);
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, name) == offsetof(ncclConfig_t, commName));

}  // namespace
}  // namespace sluice::fake_nccl
