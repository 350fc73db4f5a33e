// Tests where a non-finite number is found, and the message about it.

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "client/train/optimizer/adamw.h"
#include "client/train/run_report.h"

namespace sluice::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The embedding has more elements than are checked at once.
TEST(FirstNonFinite, IsNamedByParameterAndElement) {
  const stream::ModelShape shape = stream::Llama({.layers = 1,
                                                  .hidden = 16,
                                                  .heads = 2,
                                                  .kv_heads = 1,
                                                  .ffn = 20,
                                                  .vocab = 66000});
  FlatModel model(shape, at::kFloat, at::kCPU);
  model.flat().fill_(1);
  EXPECT_EQ(FirstNonFinite(model), "");
  const double values[] = {std::nan(""), HUGE_VAL, -HUGE_VAL};
  size_t turn = 0;
  for (const FlatEntry& entry : model.entries()) {
    const int64_t at = entry.size - 1;
    model.flat()[entry.offset + at] = values[turn++ % 3];
    EXPECT_EQ(FirstNonFinite(model),
              entry.name + " (element " + std::to_string(at) + ")");
    model.flat()[entry.offset + at] = 1;
  }
  const FlatEntry& second = model.entries()[1];
  model.flat()[second.offset + 5] = std::nan("");
  model.flat()[second.offset + 3] = std::nan("");
  EXPECT_EQ(FirstNonFinite(model), second.name + " (element 3)");
}

TEST(Explain, NamesWhatOverflowedFirst) {
  const RunOptions options;
  NonFinite what{.step = 7, .loss = 2.5, .norm = std::nan(""), .lr = 0.001};
  EXPECT_THAT(Explain(what, options), HasSubstr("step 7: the loss is 2.5 and"));
  EXPECT_THAT(Explain(what, options), HasSubstr("(lr 0.001, fp32)"));
  EXPECT_THAT(Explain(what, options), HasSubstr("backward overflowed"));
  EXPECT_THAT(Explain(what, options), Not(HasSubstr("gradient of")));
  what.gradient = "embed (element 3)";
  EXPECT_THAT(Explain(what, options), HasSubstr("gradient of embed (elem"));
  what.loss = std::nan("");
  EXPECT_THAT(Explain(what, options), HasSubstr("so forward overflowed"));
  EXPECT_THAT(Explain(what, options), Not(HasSubstr("embed")));
  what.weight = "norm (element 1)";
  EXPECT_THAT(Explain(what, options), HasSubstr("the weight norm (element 1)"));
  EXPECT_THAT(Explain(what, options), Not(HasSubstr("forward")));
}

TEST(Explain, AdvisesOnlyWhatFitsTheRun) {
  RunOptions options;
  options.warmup = 0;
  options.clip = 1;
  NonFinite what{.step = 1, .lr = 0.001};
  const auto text = [&] { return Explain(what, options); };
  EXPECT_THAT(text(), HasSubstr("shape of the model"));
  options.dtype = Dtype::kBf16;
  EXPECT_THAT(text(), HasSubstr("--dtype fp32"));
  EXPECT_THAT(text(), Not(HasSubstr("--lr")));
  what.step = 20;
  EXPECT_THAT(text(), HasSubstr("--lr (it was 0.001) or raise --warmup; "));
  EXPECT_THAT(text(), HasSubstr("--dtype fp32"));
  what.step = 21;
  EXPECT_THAT(text(), Not(HasSubstr("--warmup")));
  EXPECT_THAT(text(), Not(HasSubstr("--clip")));
  options.clip = 0;
  options.dtype = Dtype::kFp32;
  EXPECT_THAT(text(), HasSubstr("--clip 1"));
  EXPECT_THAT(text(), Not(HasSubstr("fp32 tells")));
  options.warmup = 20;
  EXPECT_THAT(text(), HasSubstr("warm-up of 20 steps"));
  what.step = 22;
  EXPECT_THAT(text(), Not(HasSubstr("warm-up")));
  EXPECT_THAT(text(), Not(HasSubstr("--resume")));
  options.save = "runs/a";
  EXPECT_THAT(text(), HasSubstr("--resume runs/a"));
  // A weight that is not finite at the first step was in the checkpoint.
  what.weight = "norm (element 1)";
  what.first_step = 22;
  EXPECT_THAT(text(), HasSubstr("--lr"));
  what.resumed = true;
  EXPECT_THAT(text(), HasSubstr("--resume an earlier one"));
  what.first_step = 21;
  EXPECT_THAT(text(), HasSubstr("--lr"));
}

}  // namespace
}  // namespace sluice::train
