// What `check` makes of a step's loss and gradients: how far they are from the
// reference in fp64, and whether that is near enough.
//
// fp32. The error of a parameter is max|a-b| / max(max|b|, 0.01 x the largest
// max|b| among its layer's parameters), b from the reference: some gradients
// are zero in exact arithmetic (the bias of K without RoPE), and there any
// rounding would count as a whole. What belongs to no layer (embedding, final
// norm, head) is a group of its own. Ok: at most 1e-4, and a loss error of at
// most 1e-5.
//
// bf16, every parameter by itself, a against plain torch's p in bf16:
//   norm   |a-b| <= 1.5 |p-b|: no less exact than plain torch, as a whole;
//   scale  |1 - <a,b>/<b,b>| <= 0.02: rounding falls to both sides, so a
//          factor, or rows that are missing, show here however coarse bf16 is.
// A norm error of 1e-5 of its group's largest norm is none. A gradient of less
// than 1/1000 of that has no scale (K's bias without RoPE: zero in exact
// arithmetic, so all that is left is how each kernel rounds): it may be off by
// 1.5 times plain torch's error or by 1.5/1000 of that norm. The loss: at
// most 1.5 times plain torch's error (at least 2^-8: by chance plain torch may
// be right to many digits). As a whole the largest fp32-like error of gradients
// that have a scale is at most 1.5 times plain torch's too.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "client/train/check/reference.h"

namespace sluice::train {

struct CheckReport {
  std::string attention;  // the kernel that computed it
  double loss_rel_error = 0;
  double grad_max_rel_error = 0;
  std::string worst_parameter;  // of grad_max_rel_error
  bool ok = false;
  std::string why;  // not ok: what is too far off
  // bf16 only: plain torch's errors, which ours are judged by.
  bool judged_by_plain = false;
  double plain_loss_rel_error = 0;
  double plain_grad_max_rel_error = 0;
  // |a-b| / |p-b| and |1 - <a,b>/<b,b>|, the largest with their parameters.
  double norm_over_plain = 0;
  std::string norm_parameter;
  double scale_error = 0;
  std::string scale_parameter;
};

std::string ToJson(const CheckReport& report);
// The same in a few lines for a person.
std::string ToText(const CheckReport& report);

// The two errors of `result` against `truth`.
CheckReport Compare(const ReferenceResult& result,
                    const ReferenceResult& truth);

CheckReport JudgeFp32(const ReferenceResult& result,
                      const ReferenceResult& truth);
CheckReport JudgeBf16(const ReferenceResult& result,
                      const ReferenceResult& plain,
                      const ReferenceResult& truth);

}  // namespace sluice::train
