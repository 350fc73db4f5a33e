// The entry function for libFuzzer, built once per reader (FUZZ_READER): ./dev
// fuzz.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::FUZZ_READER({reinterpret_cast<const char*>(data), size});
  return 0;
}
