// Compares each attention kernel of a GPU with autograd over all keys at once,
// on the fake CUDA driver or a real one. Blocks of keys are merged, and each
// block's backward takes the merged output and log-sum-exp.
// SLUICE_TEST_ATTENTION names the kernel (test_node.h).
#include <ATen/ATen.h>

#include <cmath>
#include <ostream>

#include "client/torch/backend/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/torch/test_node.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kBf16 = at::kBFloat16;

struct Shape {
  const char* name;
  int64_t rows, heads, kv_heads, dim;
  // Sizes of the blocks of keys. The last block is causal and has `rows` keys.
  std::vector<int64_t> blocks;

  friend void PrintTo(const Shape& s, std::ostream* out) {
    *out << s.name << ": " << s.rows << " rows, " << s.heads << " heads, "
         << s.kv_heads << " kv heads, dim " << s.dim << ", " << s.blocks.size()
         << " blocks";
  }
};

// Returns a CPU tensor [rows, heads, dim] in fp64. bf16 can hold its values.
at::Tensor Drawn(int64_t rows, int64_t heads, int64_t dim) {
  return at::randn({rows, heads, dim}).to(kBf16).to(at::kDouble);
}

at::Tensor OnGpu(const at::Tensor& t) {
  return t.to(kBf16).to(TestNode(1, 0, 0).device());
}

// Returns `t` [rows, heads, dim] with the heads outermost in memory.
at::Tensor HeadsBeforeRows(const at::Tensor& t) {
  return t.transpose(0, 1).contiguous().transpose(0, 1);
}

// Autograd over all keys at once, with attention as a full matrix in fp64.
struct Truth {
  at::Tensor output;
  at::Tensor q, k, v;  // the gradients of q, k and v
};
Truth TruthOf(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& gradient) {
  const int64_t rows = q.size(0), keys = k.size(0);
  const std::vector<at::Tensor> leaves = {q.clone().requires_grad_(),
                                          k.clone().requires_grad_(),
                                          v.clone().requires_grad_()};
  const auto heads = [&](const at::Tensor& t) {
    return t.repeat_interleave(q.size(1) / t.size(1), 1).transpose(0, 1);
  };
  const at::Tensor seen =
      at::ones({rows, keys}, at::kBool).tril(keys - rows).logical_not();
  const at::Tensor scores =
      at::matmul(heads(leaves[0]), heads(leaves[1]).transpose(1, 2)) /
      std::sqrt(static_cast<double>(q.size(2)));
  const at::Tensor output =
      at::matmul(scores.masked_fill(seen, -INFINITY).softmax(-1),
                 heads(leaves[2]))
          .transpose(0, 1);
  output.backward(gradient);
  return {output.detach(), leaves[0].grad(), leaves[1].grad(),
          leaves[2].grad()};
}

double ErrorOf(const at::Tensor& got, const at::Tensor& truth) {
  return ((got.cpu().to(at::kDouble) - truth).abs().max() /
          truth.abs().max().clamp_min(1e-3))
      .item<double>();
}

class AttentionKernels : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!OnCuda()) GTEST_SKIP() << "only a GPU has these kernels";
    at::manual_seed(7);
  }
};

TEST_P(AttentionKernels, MergedBlocksHaveTheGradientsOfAutograd) {
  const Shape& s = GetParam();
  int64_t keys = 0;
  for (const int64_t block : s.blocks) keys += block;
  const at::Tensor q = Drawn(s.rows, s.heads, s.dim);
  const at::Tensor k = Drawn(keys, s.kv_heads, s.dim);
  const at::Tensor v = Drawn(keys, s.kv_heads, s.dim);
  const at::Tensor gradient = Drawn(s.rows, s.heads, s.dim);
  const Truth truth = TruthOf(q, k, v, gradient);

  const at::Tensor own = OnGpu(q);
  const Backend& gpu = BackendOf(own);
  const at::Tensor all_k = OnGpu(k), all_v = OnGpu(v);
  AttentionResult running;
  for (int64_t begin = 0, i = 0; begin < keys; begin += s.blocks[i++]) {
    const AttentionResult block = gpu.Attend(
        own, all_k.narrow(0, begin, s.blocks[i]),
        all_v.narrow(0, begin, s.blocks[i]), begin + s.blocks[i] == keys);
    if (i == 0) {
      running = {block.output.to(at::kFloat).contiguous(),
                 block.lse.contiguous()};
    } else {
      gpu.Merge(running, block);
    }
  }
  EXPECT_LT(ErrorOf(running.output, truth.output), 0.02);

  // A kernel must read the output in both layouts.
  for (const at::Tensor& output :
       {running.output, HeadsBeforeRows(running.output)}) {
    SCOPED_TRACE(output.strides());
    at::Tensor dq = at::zeros_like(running.output);
    std::vector<at::Tensor> dk, dv;
    const QueryRows queries{own, OnGpu(gradient), output, running.lse};
    for (int64_t begin = 0, i = 0; begin < keys; begin += s.blocks[i++]) {
      const AttentionGradients block = gpu.AttendBackward(
          queries, all_k.narrow(0, begin, s.blocks[i]),
          all_v.narrow(0, begin, s.blocks[i]), begin + s.blocks[i] == keys);
      dq.add_(block.q);
      dk.push_back(block.k);
      dv.push_back(block.v);
    }
    EXPECT_LT(ErrorOf(dq, truth.q), 0.02);
    EXPECT_LT(ErrorOf(at::cat(dk), truth.k), 0.02);
    EXPECT_LT(ErrorOf(at::cat(dv), truth.v), 0.02);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionKernels,
    ::testing::Values(Shape{"OneBlock", 37, 4, 4, 64, {37}},
                      Shape{"ThreeBlocks", 16, 4, 4, 8, {16, 16, 16}},
                      Shape{"Grouped", 33, 6, 2, 40, {50, 33}},
                      Shape{"OneKvHead", 17, 4, 1, 128, {17, 17}},
                      Shape{"ATailOfOneToken", 1, 4, 2, 64, {16, 16, 1}},
                      Shape{"BlocksOfOneKey", 1, 4, 2, 16, {1, 1, 1}},
                      Shape{"OneToken", 1, 2, 2, 8, {1}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(AttentionKernel, RefusesUnsupportedHeadsAndTypesByItsName) {
  if (!OnCuda()) GTEST_SKIP() << "only a GPU has these kernels";
  const at::Device gpu = TestNode(1, 0, 0).device();
  const Backend& backend = **FindBackend(gpu);
  const std::string name = backend.KernelName(kBf16, 64);
  EXPECT_THAT(backend.Check(kBf16, 64), IsOk());
  for (const int64_t dim : {60, name == "cudnn" ? 136 : 264}) {
    const absl::Status status = backend.Check(kBf16, dim);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("cuda:0 by " + name),
                      HasSubstr("have " + std::to_string(dim))));
  }
  const absl::Status fp32 = backend.Check(at::kFloat, 64);
  if (backend.KernelName(at::kFloat, 64) == "efficient") {
    EXPECT_THAT(fp32, IsOk());
  } else {
    EXPECT_EQ(fp32.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(fp32.message()),
                HasSubstr("by " + name + " takes at most 2 bytes"));
  }
}

}  // namespace
}  // namespace sluice::runtime
