// The entry function for libFuzzer. It is built once per reader (FUZZ_READER);
// `./dev fuzz` runs the programs.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::FUZZ_READER({reinterpret_cast<const char*>(data), size});
  return 0;
}
