#include "tests/planner/traces.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/places.h"

namespace sluice::planner {

plan::Trace RandomTrace(std::mt19937& random, int n, int64_t horizon,
                        int64_t max_size) {
  plan::Trace trace;
  trace.end = horizon;
  for (int k = 0; k < n; ++k) {
    const int64_t a = static_cast<int64_t>(random() % horizon);
    const int64_t b = static_cast<int64_t>(random() % horizon);
    const int64_t odd = random() % 4 == 0 ? 17 : 0;
    trace.buffers.push_back(
        {.id = k,
         .lower = std::min(a, b),
         .upper = std::max(a, b) + 1,
         .size =
             Bytes(64 * static_cast<int64_t>(1 + random() % max_size) - odd)});
  }
  return trace;
}

namespace {

// Records requests as a framework makes them. The clock ticks at each request.
class Recorder {
 public:
  Recorder(std::mt19937& random, double jitter)
      : random_(random), jitter_(jitter) {}

  size_t Malloc(int64_t bytes) {
    if (jitter_ > 0) {
      const double factor =
          1 - jitter_ +
          2 * jitter_ * static_cast<double>(random_() % 1024) / 1023;
      bytes = static_cast<int64_t>(static_cast<double>(bytes) * factor) + 1;
    }
    trace_.buffers.push_back({.id = static_cast<int64_t>(trace_.buffers.size()),
                              .lower = trace_.end++,
                              .size = Bytes(bytes)});
    return trace_.buffers.size() - 1;
  }
  void Free(size_t buffer) { trace_.buffers[buffer].upper = trace_.end++; }

  plan::Trace Take() {
    for (plan::Buffer& b : trace_.buffers) {
      if (b.upper == 0) b.upper = trace_.end + 1;
    }
    ++trace_.end;
    trace_.alignment = Bytes(512);
    return std::move(trace_);
  }

 private:
  std::mt19937& random_;
  double jitter_;
  plan::Trace trace_;
};

}  // namespace

plan::Trace LayerTrace(std::mt19937& random, int blocks, double jitter) {
  Recorder r(random, jitter);
  const int64_t hidden = int64_t{4096} * (512 << (random() % 4));
  const int64_t ffn = hidden * (random() % 2 ? 4 : 3);
  const int64_t heads = hidden / 64;
  size_t carried = r.Malloc(hidden);
  for (int k = 0; k < blocks; ++k) {
    const size_t norm = r.Malloc(hidden);
    const size_t rows = r.Malloc(heads);
    const size_t qkv = r.Malloc(3 * hidden);
    r.Free(norm);
    const size_t q = r.Malloc(hidden);
    const size_t kv = r.Malloc(2 * hidden);
    r.Free(qkv);
    const size_t lse = r.Malloc(heads * 4);
    const size_t out = r.Malloc(hidden);
    r.Free(q);
    r.Free(kv);
    const size_t projected = r.Malloc(hidden);
    r.Free(out);
    r.Free(lse);
    const size_t residual = r.Malloc(hidden);
    r.Free(projected);
    r.Free(carried);
    const size_t up = r.Malloc(ffn);
    const size_t gate = r.Malloc(ffn);
    const size_t activated = r.Malloc(ffn);
    if (random() % 2) {
      r.Free(up);
      r.Free(gate);
    } else {
      r.Free(gate);
      r.Free(up);
    }
    const size_t down = r.Malloc(hidden);
    r.Free(activated);
    carried = r.Malloc(hidden);
    r.Free(down);
    r.Free(residual);
    r.Free(rows);
  }
  return r.Take();
}

plan::Trace AboveMaxLive() {
  constexpr int kBuffers[12][3] = {{0, 3, 6}, {3, 6, 5}, {0, 1, 6}, {2, 5, 2},
                                   {6, 8, 1}, {4, 8, 4}, {5, 8, 5}, {0, 5, 3},
                                   {1, 2, 3}, {7, 8, 4}, {1, 7, 3}, {1, 4, 2}};
  plan::Trace trace;
  trace.end = 8;
  for (const auto& [lower, upper, units] : kBuffers) {
    trace.buffers.push_back({.id = static_cast<int64_t>(trace.buffers.size()),
                             .lower = lower,
                             .upper = upper,
                             .size = Bytes(64 * units)});
  }
  return trace;
}

plan::Trace ReadCsv(const std::string& name) {
  const std::string path = InTree("tests/planner/data/" + name);
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::abort();
  }
  plan::Trace trace;
  trace.alignment = Bytes(1);
  while (std::getline(file, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream row(line);
    std::string id;
    int64_t lower = 0, upper = 0, size = 0;
    if (!(row >> id >> lower >> upper >> size)) continue;
    trace.buffers.push_back({.id = static_cast<int64_t>(trace.buffers.size()),
                             .lower = lower,
                             .upper = upper,
                             .size = Bytes(size)});
    trace.end = std::max(trace.end, upper);
  }
  return trace;
}

}  // namespace sluice::planner
