// libFuzzer's entry, built once a reader (FUZZ_READER): cmake --preset fuzz,
// then build/fuzz/bin/fuzz_trace -max_len=4096 tests/fuzz/corpus/trace
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::FUZZ_READER({reinterpret_cast<const char*>(data), size});
  return 0;
}
