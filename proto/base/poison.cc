#include "proto/base/poison.h"

namespace sluice {

#ifdef SLUICE_POISON
const bool kPoison = true;
#else
const bool kPoison = false;
#endif

}  // namespace sluice
