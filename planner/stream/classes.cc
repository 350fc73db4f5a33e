#include "planner/stream/classes.h"

namespace sluice::stream {
namespace {

constexpr bool TableIsInOrder() {
  for (int i = 0; i < kClassCount; ++i) {
    if (static_cast<int>(kClasses[i].which) != i) return false;
  }
  return true;
}
static_assert(TableIsInOrder());

constexpr bool FreeClassesAreThose() {
  size_t free = 0;
  for (const ClassTraits& c : kClasses) free += c.free();
  for (const Class which : kFreeClasses) free -= Traits(which).free();
  return free == 0;
}
static_assert(FreeClassesAreThose());

}  // namespace

const ClassTraits* FindFreeClass(std::string_view name) {
  for (const Class which : kFreeClasses) {
    if (name == Traits(which).name) return &Traits(which);
  }
  return nullptr;
}

}  // namespace sluice::stream
