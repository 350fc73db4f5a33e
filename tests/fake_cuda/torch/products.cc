// Matrix products of half types with fp32 sums, as in cuBLAS. ATen has no CPU
// kernel for them. The refusals are documented by torch's cuda/Blas.cpp.
#include <ATen/ops/addmm.h>
#include <torch/library.h>

#include "tests/fake_cuda/torch/kernel.h"
#include "tests/fake_cuda/torch/workspace.h"

namespace sluice::fake_cuda {
namespace {

at::Tensor& AddmmDtypeOut(const at::Tensor& self, const at::Tensor& a,
                          const at::Tensor& b, at::ScalarType type,
                          const at::Scalar& beta, const at::Scalar& alpha,
                          at::Tensor& out) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "mat1 and mat2 must have the same dtype");
  TORCH_CHECK(type == at::kFloat && (a.scalar_type() == at::kHalf ||
                                     a.scalar_type() == at::kBFloat16),
              "out_dtype must be fp32 for fp16/bf16 inputs");
  TORCH_CHECK(out.scalar_type() == type && self.is_same(out),
              "an addend other than the result, or not of out_dtype, is not "
              "implemented here");
  TORCH_CHECK(a.size(1) == b.size(0) && out.size(0) == a.size(0) &&
                  out.size(1) == b.size(1),
              "mat1 and mat2 shapes cannot be multiplied");
  TakeWorkspace("aten::addmm", out.device());
  Launch("addmm.dtype_out", {out, a, b}, {out},
         [beta, alpha](const Tensors& reads, const Tensors& writes) {
           writes[0].addmm_(reads[1].to(at::kFloat), reads[2].to(at::kFloat),
                            beta, alpha);
         });
  return out;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("addmm.dtype_out", AddmmDtypeOut); }

}  // namespace
}  // namespace sluice::fake_cuda
