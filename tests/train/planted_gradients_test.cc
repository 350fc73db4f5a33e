// Tests that the rules of `check` find, in every tensor, a gradient that is 5 %
// too large and a gradient without 5 % of its rows: in fp32, and in bf16, where
// rounding errors are that large.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "client/train/check/check.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::train {
namespace {

using runtime::StepCase;
using runtime::StepData;
using ::testing::IsEmpty;

struct Case {
  const char* name;
  bool gpt;
  at::ScalarType dtype;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

StepCase StepOf(const Case& c) {
  const stream::ModelShape sizes{.layers = 2,
                                 .hidden = 64,
                                 .heads = 4,
                                 .kv_heads = c.gpt ? 4 : 2,
                                 .ffn = 96,
                                 .vocab = 131,
                                 .max_positions = c.gpt ? 333 : 0};
  return {.model = c.gpt ? stream::Gpt(sizes) : stream::Llama(sizes),
          .seq_len = 333,
          .chunk = 64,
          .stream = {.alpha = 0.5},
          .dtype = c.dtype};
}

std::map<std::string, at::Tensor> Named(const stream::ModelShape& model,
                                        runtime::ModelTensors tensors) {
  std::map<std::string, at::Tensor> named;
  for (const runtime::NamedTensor& t : runtime::NamedTensors(model, tensors)) {
    named[t.name] = *t.tensor;
  }
  return named;
}

// A streamed step, and the rule for its dtype.
class Checked {
 public:
  explicit Checked(const Case& c) {
    const StepCase step = StepOf(c);
    const StepData data = runtime::MakeStepData(step, 17);
    const stream::ModelShape& m = step.model;
    const ReferenceModel model{
        !c.gpt,        m.layers,   m.hidden,
        m.heads,       m.kv_heads, m.rope.value_or(stream::Rope{}).theta,
        m.norm_epsilon};
    const auto weights = Named(m, data.weights);
    truth_ =
        RunReference(model, weights, data.tokens, data.labels, at::kDouble);
    bf16_ = c.dtype == at::kBFloat16;
    if (bf16_) {
      plain_ = RunReference(model, weights, data.tokens, data.labels, c.dtype);
    }
    const runtime::StepOutcome ran = runtime::RunStep(step, data);
    ours_ = {ran.loss_sum / static_cast<double>(ran.count),
             Named(m, ran.gradients)};
  }

  CheckReport Judge(const ReferenceResult& result) const {
    return bf16_ ? JudgeBf16(result, plain_, truth_)
                 : JudgeFp32(result, truth_);
  }
  const ReferenceResult& ours() const { return ours_; }

  // Returns the tensors in which `plant` is not found. Skips k's bias: its
  // gradient is only rounding errors.
  std::vector<std::string> Missed(
      const std::function<at::Tensor(const at::Tensor&)>& plant) const {
    std::vector<std::string> missed;
    for (const auto& [name, gradient] : ours_.gradients) {
      if (name.ends_with(".k_bias")) continue;
      ReferenceResult planted = ours_;
      planted.gradients[name] = plant(gradient);
      if (Judge(planted).ok) missed.push_back(name);
    }
    return missed;
  }

 private:
  bool bf16_ = false;
  ReferenceResult truth_, plain_, ours_;
};

// Zeroes one random row in 20 (at least one) of the rows that are not zero.
at::Tensor WithoutSomeRows(const at::Tensor& gradient) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < gradient.size(0); ++row) {
    if (gradient[row].abs().max().item<double>() > 0) rows.push_back(row);
  }
  std::shuffle(rows.begin(), rows.end(), std::mt19937(3));
  rows.resize((rows.size() + 19) / 20);
  at::Tensor less = gradient.clone();
  for (const int64_t row : rows) less[row].zero_();
  return less;
}

class PlantedGradient : public ::testing::TestWithParam<Case> {};

TEST_P(PlantedGradient, IsFoundInEveryTensor) {
  const Checked checked(GetParam());
  const CheckReport report = checked.Judge(checked.ours());
  EXPECT_TRUE(report.ok) << report.why;
  std::printf("%s", ToText(report).c_str());
  EXPECT_THAT(checked.Missed([](const at::Tensor& g) { return g * 1.05; }),
              IsEmpty());
  EXPECT_THAT(checked.Missed(WithoutSomeRows), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PlantedGradient,
    ::testing::Values(Case{"LlamaFp32", false, at::kFloat},
                      Case{"GptFp32", true, at::kFloat},
                      Case{"LlamaBf16", false, at::kBFloat16},
                      Case{"GptBf16", true, at::kBFloat16}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::train
