// libFuzzer's entry: cmake --preset fuzz, then
// build/fuzz/bin/trace_fuzz -max_len=4096 tests/fuzz/corpus/trace
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/trace_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::ReadAsTrace({reinterpret_cast<const char*>(data), size});
  return 0;
}
