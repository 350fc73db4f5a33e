#include "client/train/nonfinite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "client/torch/memory/host_scope.h"

namespace sluice::train {
namespace {

// Elements searched at a time; their mask must fit into a HostScope.
constexpr int64_t kPiece = 1 << 20;

// Returns the first element that is not finite, or -1.
int64_t FirstIn(const at::Tensor& flat, int64_t offset, int64_t size) {
  for (int64_t at = 0; at < size; at += kPiece) {
    const int64_t n = std::min(kPiece, size - at);
    const at::Tensor wrong =
        at::isfinite(flat.narrow(0, offset + at, n)).logical_not();
    if (!wrong.any().item<bool>()) continue;
    return at + wrong.nonzero()[0].item<int64_t>();
  }
  return -1;
}

std::string PlaceText(const NonFinite& what) {
  if (!what.weight.empty()) {
    return fmt::format("the weight {} is not finite before this step",
                       what.weight);
  }
  if (!std::isfinite(what.loss)) {
    return "all weights are finite, so forward overflowed";
  }
  const std::string text = "the loss is finite, so backward overflowed";
  if (what.gradient.empty()) return text;
  return text + ": first in the gradient of " + what.gradient;
}

std::string Advice(const NonFinite& what, const RunOptions& o) {
  const bool first = what.step == what.first_step;
  if (!what.weight.empty() && what.resumed && first) {
    return "the checkpoint holds it: --resume an earlier one";
  }
  if (what.step == 1) {
    return o.dtype == Dtype::kBf16 ? "no update has been made yet, so look at "
                                     "the data and try --dtype fp32"
                                   : "no update has been made yet, so look at "
                                     "the data and the shape of the model";
  }
  std::string text = fmt::format("lower --lr (it was {:.3g}", what.lr);
  text += what.step <= o.warmup + 1 && o.warmup > 0
              ? fmt::format(", in the warm-up of {} steps)", o.warmup)
              : ")";
  if (what.step <= 20) text += " or raise --warmup";
  if (o.clip == 0) text += ", and clip the gradient (--clip 1; it is off)";
  if (o.dtype == Dtype::kBf16) text += "; --dtype fp32 tells overflow of bf16";
  if (!o.save.empty()) {
    text +=
        fmt::format("; --resume {} goes on from the last checkpoint", o.save);
  }
  return text;
}

}  // namespace

std::string FirstNonFinite(const FlatModel& model) {
  const runtime::HostScope host("the search for a non-finite value");
  for (const FlatEntry& entry : model.entries()) {
    const int64_t at = FirstIn(model.flat(), entry.offset, entry.size);
    if (at >= 0) return fmt::format("{} (element {})", entry.name, at);
  }
  return "";
}

std::string Explain(const NonFinite& what, const RunOptions& o) {
  return fmt::format(
      "step {}: the loss is {} and the gradient norm {} (lr {:.3g}, {}); {}; "
      "stopped before the update: {}",
      what.step, what.loss, what.norm, what.lr, Name(o.dtype), PlaceText(what),
      Advice(what, o));
}

}  // namespace sluice::train
