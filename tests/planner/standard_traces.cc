// Defines generator.h's standard iterations and layers, and writes traces as
// text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <tuple>
#include <utility>

#include "tests/planner/generator.h"

namespace sluice::planner {
namespace {

IterationSpec Llama(std::string name, int layers, int64_t hidden, int64_t ffn,
                    int64_t heads, int64_t kv_heads) {
  return {.name = std::move(name),
          .layers = layers,
          .hidden = hidden,
          .ffn = ffn,
          .heads = heads,
          .kv_heads = kv_heads,
          .vocabulary = 128256,
          .swiglu = true};
}

IterationSpec Gpt(std::string name, int layers, int64_t hidden, int64_t heads) {
  return {.name = std::move(name),
          .layers = layers,
          .hidden = hidden,
          .ffn = 4 * hidden,
          .heads = heads,
          .kv_heads = heads};
}

std::vector<IterationSpec> MakeStandardIterations() {
  std::vector<IterationSpec> all;
  const auto add = [&](IterationSpec spec, int tp, int cp, int chunks,
                       int micro_batches, bool swapped, bool dropout = false) {
    spec.tensor_parallel = tp;
    spec.context_parallel = cp;
    spec.chunks = chunks;
    spec.micro_batches = micro_batches;
    spec.swapped = swapped;
    spec.dropout = dropout;
    if (chunks > 1) spec.tokens = 65536;
    all.push_back(std::move(spec));
  };
  const IterationSpec small = Gpt("gpt-7b", 32, 4096, 32);
  const IterationSpec medium = Gpt("gpt-13b", 40, 5120, 40);
  const IterationSpec large = Gpt("gpt-65b", 80, 8192, 64);
  const IterationSpec llama = Llama("llama-8b", 32, 4096, 14336, 32, 8);
  const IterationSpec llama70 = Llama("llama-70b", 80, 8192, 28672, 64, 8);
  add(small, 1, 1, 1, 2, false);
  add(small, 8, 1, 1, 2, false, true);
  add(small, 4, 2, 1, 2, true);
  add(small, 1, 1, 4, 1, true);
  add(medium, 4, 1, 1, 11, false);
  add(medium, 4, 1, 1, 4, false, true);
  add(small, 2, 1, 8, 1, false);
  add(large, 8, 1, 1, 1, false);
  add(large, 8, 2, 1, 2, true);
  add(llama, 1, 4, 1, 1, false);
  add(llama, 1, 4, 1, 9, false);
  add(llama, 4, 1, 1, 4, true);
  add(llama, 1, 1, 8, 1, true);
  add(llama, 1, 1, 1, 8, false, true);
  add(llama70, 8, 1, 1, 1, false);
  add(llama70, 8, 2, 1, 2, false);
  add(llama70, 8, 1, 4, 1, true);
  for (IterationSpec& s : all) {
    s.name +=
        fmt::format("-tp{}-cp{}-chunks{}-mb{}{}{}", s.tensor_parallel,
                    s.context_parallel, s.chunks, s.micro_batches,
                    s.dropout ? "-dropout" : "", s.swapped ? "-swapped" : "");
  }
  return all;
}

struct Event {
  int64_t time;
  bool allocates;  // else frees; frees come first, as lifetimes are half-open
  size_t buffer;
};

}  // namespace

std::vector<IterationSpec> StandardIterations() {
  return MakeStandardIterations();
}

const IterationSpec* FindIteration(std::string_view name) {
  static const std::vector<IterationSpec> all = MakeStandardIterations();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const auto& s) { return s.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<NamedTrace> StandardLayers(int count, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<IterationSpec> specs = MakeStandardIterations();
  std::vector<NamedTrace> layers;
  while (static_cast<int>(layers.size()) < count) {
    IterationSpec spec = specs[random() % specs.size()];
    spec.chunks = std::array{1, 1, 1, 2, 3, 4}[random() % 6];
    spec.tokens = int64_t{512 * spec.chunks} << (random() % 5);
    spec.dropout = random() % 2 == 0;
    spec.swapped = random() % 4 == 0;
    spec.jitter = layers.size() % 2 == 0 ? 0 : 0.5;
    constexpr LayerPass kPasses[] = {LayerPass::kForward, LayerPass::kBackward,
                                     LayerPass::kBoth};
    NamedTrace layer = GenerateLayer(spec, kPasses[random() % 3],
                                     static_cast<uint32_t>(random()));
    if (layer.names.size() < 25 || layer.names.size() > 295) continue;
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::string ToCsv(const plan::Trace& trace) {
  std::string text = "id,lower,upper,size\n";
  for (const plan::Buffer& b : trace.buffers) {
    text +=
        fmt::format("{},{},{},{}\n", b.id, b.lower, b.upper, b.size.count());
  }
  return text;
}

std::string ToRequestLog(const plan::Trace& trace) {
  std::vector<Event> events;
  for (size_t k = 0; k < trace.buffers.size(); ++k) {
    events.push_back({trace.buffers[k].lower, true, k});
    if (trace.buffers[k].upper < trace.end) {
      events.push_back({trace.buffers[k].upper, false, k});
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.time, a.allocates, a.buffer) <
           std::tie(b.time, b.allocates, b.buffer);
  });
  std::string text;
  for (const Event& event : events) {
    const plan::Buffer& b = trace.buffers[event.buffer];
    text += event.allocates
                ? fmt::format("malloc {} {}\n", b.id, b.size.count())
                : fmt::format("free {}\n", b.id);
  }
  return text;
}

}  // namespace sluice::planner
