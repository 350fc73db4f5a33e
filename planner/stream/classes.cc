#include "planner/stream/classes.h"

namespace sluice::stream {
namespace {

constexpr bool ClassesAreInOrder() {
  for (int i = 0; i < kClassCount; ++i) {
    if (static_cast<int>(kClasses[i].which) != i) return false;
  }
  return true;
}
static_assert(ClassesAreInOrder());

constexpr bool FreeClassesAreThose() {
  size_t free = 0;
  for (const ClassTraits& c : kClasses) free += c.free();
  for (const Class which : kFreeClasses) free -= Traits(which).free();
  return free == 0;
}
static_assert(FreeClassesAreThose());

}  // namespace

const ClassTraits* FindClass(std::string_view name) {
  for (const ClassTraits& c : kClasses) {
    if (name == c.name) return &c;
  }
  return nullptr;
}

}  // namespace sluice::stream
