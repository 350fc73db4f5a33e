// `sluice-train check`: compares one step on all ranks with the reference.
// Judges loss and gradients by their distance to the reference in fp64.
//
// fp32. The error of a parameter is max|a-b| / max(max|b|, 0.01 x the largest
// max|b| among its layer's parameters), where a is the step's gradient and b
// the reference's. The 0.01 is for gradients that are zero in exact arithmetic
// (K's bias without RoPE), where any rounding would be an error of 1.
// Parameters of no layer (embedding, final norm, head) are one group. A step is
// ok if no error exceeds 1e-4 and the loss error does not exceed 1e-5.
//
// bf16. Each parameter is judged alone: its gradient a is compared with p, the
// gradient of plain torch in bf16, by norms |x|:
//   norm   |a-b| <= 1.5 |p-b|: the error is hardly larger than plain torch's;
//   scale  |1 - <a,b>/<b,b>| <= 0.02: a wrong factor or missing rows show here
//          even in bf16, because errors of rounding cancel out.
// Let g be the largest |b| in the parameter's group. |p-b| counts as at least
// 1e-5 g. If |b| <= 1e-3 g, the scale is not judged, and |p-b| counts as at
// least 1e-3 g. The loss error may be 1.5 times plain torch's (at least 2^-8,
// because plain torch may be right by chance). The largest error by fp32's
// formula, over the gradients with a judged scale, may be 1.5 times plain
// torch's too. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace sluice::train {

class PeerWatch;
struct StepperContext;

// The oracle: the trained model in plain torch, with the whole attention matrix
// and autograd, in any dtype. It shares no code with the streamed path: plain
// numbers and a map of weights go in. Names are those of the flat model
// ("layers.0.q_weight"). Needs memory for layers x heads x length^2.
struct ReferenceModel {
  bool llama = true;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0;
  double rope_theta = 0, norm_epsilon = 0;
};

struct ReferenceResult {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // in the computation's dtype
};

// Computes the mean loss over the labels that are not -100. `ids` and `labels`
// are int64 [length].
ReferenceResult RunReference(const ReferenceModel& model,
                             const std::map<std::string, at::Tensor>& weights,
                             const at::Tensor& ids, const at::Tensor& labels,
                             at::ScalarType dtype);

struct CheckReport {
  std::string attention;  // the kernel's name
  double loss_rel_error = 0;
  double grad_max_rel_error = 0;
  std::string worst_parameter;  // the parameter with grad_max_rel_error
  bool ok = false;
  std::string why;  // what is too far off, if not ok
  // bf16 only: plain torch's errors.
  bool judged_by_plain = false;
  double plain_loss_rel_error = 0;
  double plain_grad_max_rel_error = 0;
  // The largest |a-b| / |p-b| and |1 - <a,b>/<b,b>|, with their parameters.
  double norm_over_plain = 0;
  std::string norm_parameter;
  double scale_error = 0;
  std::string scale_parameter;
};

std::string ToJson(const CheckReport& report);
std::string ToText(const CheckReport& report);

// Returns the errors of the loss and of the gradients that `counts` selects
// (null: of all) against `truth`, without a verdict.
CheckReport Compare(
    const ReferenceResult& result, const ReferenceResult& truth,
    const std::function<bool(const std::string& name)>& counts = nullptr);
CheckReport JudgeFp32(const ReferenceResult& result,
                      const ReferenceResult& truth);
CheckReport JudgeBf16(const ReferenceResult& result,
                      const ReferenceResult& plain,
                      const ReferenceResult& truth);

// All ranks call it; rank 0 compares and fills `report`. Internal, with the
// reason: the step is not ok.
absl::Status RunCheck(const StepperContext& context, PeerWatch& watch,
                      CheckReport* report);

}  // namespace sluice::train
