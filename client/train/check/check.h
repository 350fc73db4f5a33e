// `sluice-train check`: one step of the streamed path on all ranks against
// the reference.
//
// The error of a parameter is max|a-b| / max(max|b|, 0.01 x the largest
// max|b| among its layer's parameters), b from the reference in fp64: some
// gradients are zero in exact arithmetic (the bias of K without RoPE), and
// there any rounding would count as a whole. What belongs to no layer
// (embedding, final norm, head) is a group of its own.
//
// ok: in fp32 a gradient error of at most 1e-4 and a loss error of at most
// 1e-5. In bf16 both at most 1.5 times those of plain torch in bf16 (the loss
// at least 2^-8: by chance plain torch may be right to many digits).
// Thread safety: pure functions, but RunCheck: one thread.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "client/train/check/reference.h"
#include "client/train/launch/peer_watch.h"
#include "client/train/stepper.h"

namespace sluice::train {

struct CheckReport {
  double loss_rel_error = 0;
  double grad_max_rel_error = 0;
  std::string worst_parameter;
  bool ok = false;
  // bf16 only: plain torch's errors, which ours are judged by.
  bool judged_by_plain = false;
  double plain_loss_rel_error = 0;
  double plain_grad_max_rel_error = 0;
};

std::string ToJson(const CheckReport& report);
// The same in a few lines for a person.
std::string ToText(const CheckReport& report);

// The two errors of `result` against `truth`.
CheckReport Compare(const ReferenceResult& result,
                    const ReferenceResult& truth);

// All ranks call it; rank 0 compares and fills `report`. A step that is not
// ok is an Internal status naming the worst parameter.
absl::Status RunCheck(const StepperContext& context, PeerWatch& watch,
                      CheckReport* report);

}  // namespace sluice::train
