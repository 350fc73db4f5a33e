#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "client/train/check/check.h"

namespace sluice::train {
namespace {

constexpr double kFp32Gradient = 1e-4;
constexpr double kFp32Loss = 1e-5;
constexpr double kOverPlain = 1.5;
constexpr double kBf16Loss = 1.0 / 256;
constexpr double kScale = 0.02;
// Fractions of a group's largest norm. The scale of a gradient below kNoScale
// is not judged. Plain torch's error counts as at least kNoError.
constexpr double kNoScale = 1e-3;
constexpr double kNoError = 1e-5;

// Returns "layers.3.", or "" for parameters of no layer.
std::string GroupOf(const std::string& name) {
  if (!name.starts_with("layers.")) return "";
  return name.substr(0, name.find('.', 7) + 1);
}

double MaxAbs(const at::Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item().toDouble();
}
double NormOf(const at::Tensor& t) {
  return at::linalg_vector_norm(t).item().toDouble();
}

// Returns the largest `size` of a gradient in each group.
std::map<std::string, double> Largest(const ReferenceResult& truth, auto size) {
  std::map<std::string, double> largest;
  for (const auto& [name, b] : truth.gradients) {
    double& most = largest[GroupOf(name)];
    most = std::max(most, size(b));
  }
  return largest;
}

bool HasScale(const at::Tensor& gradient, double largest_of_group) {
  return NormOf(gradient) > kNoScale * largest_of_group;
}

// Keeps the larger error and its parameter; NaN is the largest.
void Worst(double error, const std::string& name, double& worst,
           std::string& whose) {
  if (std::isnan(worst) || (!whose.empty() && error <= worst)) return;
  worst = error;
  whose = name;
}

void JudgeParameters(const ReferenceResult& result,
                     const ReferenceResult& plain, const ReferenceResult& truth,
                     CheckReport& report) {
  const std::map<std::string, double> largest = Largest(truth, NormOf);
  for (const auto& [name, b] : truth.gradients) {
    const double group = std::max(largest.at(GroupOf(name)), 1e-30);
    const at::Tensor a = result.gradients.at(name).to(at::kDouble);
    const double theirs = NormOf(plain.gradients.at(name).to(at::kDouble) - b);
    const bool scaled = HasScale(b, group);
    const double least = (scaled ? kNoError : kNoScale) * group;
    Worst(NormOf(a - b) / std::max(theirs, least), name, report.norm_over_plain,
          report.norm_parameter);
    if (!scaled) continue;
    const double along =
        (a * b).sum().item().toDouble() / (b * b).sum().item().toDouble();
    Worst(std::abs(1 - along), name, report.scale_error,
          report.scale_parameter);
  }
}

std::string WhyNotBf16(const CheckReport& r) {
  if (!(r.norm_over_plain <= kOverPlain)) {
    return fmt::format("{} is {:.3g} times as far off as plain torch's",
                       r.norm_parameter, r.norm_over_plain);
  }
  if (!(r.scale_error <= kScale)) {
    return fmt::format("the scale of {} is off by {:.3g}", r.scale_parameter,
                       r.scale_error);
  }
  if (!(r.grad_max_rel_error <= kOverPlain * r.plain_grad_max_rel_error)) {
    return fmt::format("gradient error {:.3g} in {}, plain torch's {:.3g}",
                       r.grad_max_rel_error, r.worst_parameter,
                       r.plain_grad_max_rel_error);
  }
  if (!(r.loss_rel_error <=
        std::max(kOverPlain * r.plain_loss_rel_error, kBf16Loss))) {
    return fmt::format("loss error {:.3g}, plain torch's {:.3g}",
                       r.loss_rel_error, r.plain_loss_rel_error);
  }
  return "";
}

}  // namespace

CheckReport Compare(const ReferenceResult& result, const ReferenceResult& truth,
                    const std::function<bool(const std::string&)>& counts) {
  CheckReport report;
  report.loss_rel_error = std::abs(result.loss - truth.loss) /
                          std::max(std::abs(truth.loss), 1e-30);
  const std::map<std::string, double> largest = Largest(truth, MaxAbs);
  for (const auto& [name, b] : truth.gradients) {
    if (counts && !counts(name)) continue;
    const at::Tensor a = result.gradients.at(name).to(at::kDouble);
    const double scale =
        std::max({MaxAbs(b), 0.01 * largest.at(GroupOf(name)), 1e-30});
    Worst(MaxAbs(a - b) / scale, name, report.grad_max_rel_error,
          report.worst_parameter);
  }
  return report;
}

CheckReport JudgeFp32(const ReferenceResult& result,
                      const ReferenceResult& truth) {
  CheckReport report = Compare(result, truth);
  report.ok = report.grad_max_rel_error <= kFp32Gradient &&
              report.loss_rel_error <= kFp32Loss;
  if (!report.ok) {
    report.why = fmt::format("loss error {:.3g}, gradient error {:.3g} in {}",
                             report.loss_rel_error, report.grad_max_rel_error,
                             report.worst_parameter);
  }
  return report;
}

CheckReport JudgeBf16(const ReferenceResult& result,
                      const ReferenceResult& plain,
                      const ReferenceResult& truth) {
  const std::map<std::string, double> largest = Largest(truth, NormOf);
  const auto scaled = [&](const std::string& name) {
    return HasScale(truth.gradients.at(name), largest.at(GroupOf(name)));
  };
  CheckReport report = Compare(result, truth, scaled);
  const CheckReport theirs = Compare(plain, truth, scaled);
  report.judged_by_plain = true;
  report.plain_loss_rel_error = theirs.loss_rel_error;
  report.plain_grad_max_rel_error = theirs.grad_max_rel_error;
  JudgeParameters(result, plain, truth, report);
  report.why = WhyNotBf16(report);
  report.ok = report.why.empty();
  return report;
}

std::string ToJson(const CheckReport& r) {
  nlohmann::ordered_json json = {{"loss_rel_error", r.loss_rel_error},
                                 {"grad_max_rel_error", r.grad_max_rel_error},
                                 {"worst_parameter", r.worst_parameter},
                                 {"ok", r.ok},
                                 {"attention", r.attention}};
  if (r.judged_by_plain) {
    json["plain_bf16"] = {{"loss_rel_error", r.plain_loss_rel_error},
                          {"grad_max_rel_error", r.plain_grad_max_rel_error}};
    json["norm_over_plain"] = r.norm_over_plain;
    json["norm_parameter"] = r.norm_parameter;
    json["scale_error"] = r.scale_error;
    json["scale_parameter"] = r.scale_parameter;
  }
  return json.dump();
}

std::string ToText(const CheckReport& r) {
  std::string text = fmt::format(
      "loss        off by {:.1e} of plain autograd's in fp64\n"
      "gradients   off by {:.1e} at most, in {}\n"
      "attention   {}\n",
      r.loss_rel_error, r.grad_max_rel_error, r.worst_parameter, r.attention);
  if (r.judged_by_plain) {
    text += fmt::format(
        "plain torch in bf16 is off by {:.1e} and {:.1e}\n"
        "norms       at most {:.2f} times as far off as plain torch's, in {}\n"
        "scales      off by {:.1e} at most, in {}\n",
        r.plain_loss_rel_error, r.plain_grad_max_rel_error, r.norm_over_plain,
        r.norm_parameter, r.scale_error, r.scale_parameter);
  }
  return text + (r.ok ? "ok\n" : "NOT ok\n");
}

}  // namespace sluice::train
