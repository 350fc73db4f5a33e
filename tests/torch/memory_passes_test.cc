// Compares the bytes that a layer's elementwise operators read and write on a
// GPU, counted in steps on the fakes, with those of planner/train/passes.h.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <map>
#include <string>

#include "planner/train/passes.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {
namespace {

using planner::train::BackwardPasses;
using planner::train::ForwardPasses;
using planner::train::Passes;
using planner::train::RecomputedPasses;

// Bytes of all passes before the loss, and from the loss on.
struct PassBytes {
  double forward = 0, backward = 0;
};

// Counts the bytes of operators on GPU tensors while it lives. Operators that
// another counted operator calls, matrix products and attention blocks count 0.
class PassCounter {
 public:
  PassCounter() {
    current = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&Begin, &End)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
  }
  ~PassCounter() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  const PassBytes& bytes() const { return bytes_; }

 private:
  struct Call final : at::ObserverContext {
    bool outermost = false, results_are_written = false;
    double bytes = 0;
    std::string name;
  };

  static double SizeOf(const c10::IValue& value) {
    double size = 0;
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      if (t.defined() && t.is_cuda()) size += double(t.nbytes());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) size += SizeOf(t);
    }
    return size;
  }
  static bool Is(const std::string& name, const char* part) {
    return name.find(part) != std::string::npos;
  }
  // Returns whether the operator itself reads and writes nothing: views, and
  // operators that call others.
  static bool IsTransparent(const c10::FunctionSchema& schema) {
    const std::string& name = schema.name();
    if (Is(name, "::empty") || Is(name, "::resize") || Is(name, "::detach")) {
      return true;
    }
    for (const auto& result : schema.returns()) {
      if (result.alias_info() && !result.alias_info()->isWrite()) return true;
    }
    return schema.returns().empty();
  }
  static bool IsProduct(const std::string& name) {
    return Is(name, "::mm") || Is(name, "::addmm") || Is(name, "::bmm") ||
           Is(name, "::matmul") || Is(name, "attention_block");
  }
  // Returns whether the argument is written without being read.
  static bool OnlyWrites(const c10::FunctionSchema& schema, size_t argument) {
    const std::string& name = schema.name();
    return schema.arguments()[argument].kwarg_only() || Is(name, "::copy_") ||
           Is(name, "::zero_") || Is(name, "::fill_");
  }

  static std::unique_ptr<at::ObserverContext> Begin(
      const at::RecordFunction& function) {
    auto call = std::make_unique<Call>();
    call->name = function.name();
    const auto schema = function.operator_schema();
    if (inside || (schema && IsTransparent(*schema))) return call;
    call->outermost = inside = true;
    if (IsProduct(call->name)) return call;
    const auto inputs = function.inputs();
    bool writes = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto* const alias =
          schema ? schema->arguments()[i].alias_info() : nullptr;
      const bool written = alias != nullptr && alias->isWrite();
      writes |= written;
      const double size = SizeOf(inputs[i]);
      call->bytes += written && !OnlyWrites(*schema, i) ? 2 * size : size;
    }
    call->results_are_written = !writes;
    return call;
  }

  static void End(const at::RecordFunction& function,
                  at::ObserverContext* context) {
    auto& call = static_cast<Call&>(*context);
    if (!call.outermost) return;
    inside = false;
    if (call.results_are_written && !IsProduct(call.name)) {
      for (const c10::IValue& value : function.outputs()) {
        call.bytes += SizeOf(value);
      }
    }
    if (call.bytes > 0) current->Add(call);
  }
  void Add(const Call& call) {
    if (Is(call.name, "softmax_gradient")) loss_ = true;
    (loss_ ? bytes_.backward : bytes_.forward) += call.bytes;
    if (std::getenv("SLUICE_PRINT_PASSES") != nullptr) {
      std::printf("  %s %s %.0f\n", loss_ ? "backward" : "forward",
                  call.name.c_str(), call.bytes);
    }
  }

  static inline PassCounter* current = nullptr;
  static inline thread_local bool inside = false;

  at::CallbackHandle handle_;
  PassBytes bytes_;
  bool loss_ = false;
};

// Returns sizes with distinct widths and distinct sums of a few widths.
stream::ModelShape Sizes(int64_t layers) {
  return {.layers = layers,
          .hidden = 80,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 32,
          .ffn = 176,
          .vocab = 40,
          .max_positions = 256};
}

struct Case {
  const char* name;
  stream::ModelShape (*make)(stream::ModelShape sizes);
  stream::BackwardOrder order = stream::BackwardOrder::kKeysOuter;
};

class MemoryPasses : public ::testing::TestWithParam<Case> {
 protected:
  static PassBytes OfStep(int64_t layers, int64_t rows, double alpha) {
    StepCase c{GetParam().make(Sizes(layers)), rows, rows};
    c.dtype = at::kBFloat16;
    c.stream.alpha = alpha;
    c.stream.round_output = true;
    c.stream.order = GetParam().order;
    const StepData data = MakeStepData(c, 3);
    const PassCounter counter;
    RunStep(c, data);
    return counter.bytes();
  }
  // Returns the bytes per layer and token: only bytes that grow with both
  // numbers.
  static PassBytes OfLayer(double alpha) {
    constexpr int64_t kRows = 32;
    const auto of = [&](auto part) {
      const auto rows = [&](int64_t layers) {
        return part(OfStep(layers, 2 * kRows, alpha)) -
               part(OfStep(layers, kRows, alpha));
      };
      return (rows(2) - rows(1)) / kRows;
    };
    return {of([](const PassBytes& b) { return b.forward; }),
            of([](const PassBytes& b) { return b.backward; })};
  }
};

// Allowed difference in bytes per token: norms' statistics and positions.
constexpr double kFewNumbers = 48;

// The gradient of an RMSNorm's weight is summed over groups of this many
// tokens, or more in long chunks. The sums are written and read.
constexpr double kTokensOfSum = 16;

TEST_P(MemoryPasses, ALayersBytesMatchTheCostModels) {
  const stream::ModelShape model = GetParam().make(Sizes(1));
  const auto desk = [&](const Passes& passes) {
    return 2 * passes.Elements(model);
  };
  const bool sums = model.norm == stream::NormKind::kRmsNorm;
  const double of_norms =
      sums ? 2 * 2 * 4 * double(model.hidden) / kTokensOfSum : 0;
  const Passes backward = BackwardPasses(model, GetParam().order);
  const PassBytes stored = OfLayer(1), dropped = OfLayer(0);
  EXPECT_NEAR(stored.forward, desk(ForwardPasses(model, true)), kFewNumbers);
  EXPECT_NEAR(dropped.forward, desk(ForwardPasses(model, false)), kFewNumbers);
  EXPECT_NEAR(stored.backward, desk(backward) + of_norms, kFewNumbers);
  EXPECT_NEAR(dropped.backward,
              desk(backward + RecomputedPasses(model)) + of_norms, kFewNumbers);
}

INSTANTIATE_TEST_SUITE_P(
    Models, MemoryPasses,
    ::testing::Values(Case{"Llama", stream::Llama},
                      Case{"LlamaQueriesOuter", stream::Llama,
                           stream::BackwardOrder::kQueriesOuter},
                      Case{"Gpt", stream::Gpt}),
    [](const auto& info) { return std::string(info.param.name); });

// Per layer, ATen's kernels move 78.5 hidden states forward, 255.5 backward.
TEST(MemoryPassesOfLlama8B, AreAtMostThirtyPercentOfThoseOfAtensKernels) {
  const stream::ModelShape model = stream::Llama({.layers = 32,
                                                  .hidden = 4096,
                                                  .heads = 32,
                                                  .kv_heads = 8,
                                                  .ffn = 14336,
                                                  .vocab = 128256});
  const double forward = ForwardPasses(model, true).Elements(model) / 4096;
  const double backward =
      BackwardPasses(model, stream::BackwardOrder::kKeysOuter).Elements(model) /
      4096;
  std::printf("%.1f + %.1f hidden states, forward and backward\n", forward,
              backward);
  EXPECT_LE(forward + backward, 0.3 * (78.5 + 255.5));
}

}  // namespace
}  // namespace sluice::runtime
