#include "deploy/bundle/verify/check.h"

namespace sluice::verify {
namespace {

// Without the checks of torch, the limits add up to less than ten minutes.
constexpr Check kChecks[] = {
    {"doctor", "what the machine offers, and what mends what it does not",
     absl::Seconds(40), RunDoctor, /*needs_gpu=*/false},
    {"conformance", "the device seam's suite, on every GPU and on pairs",
     absl::Seconds(180), RunConformance},
    {"rules", "what the driver answers to who breaks what we assume of it",
     absl::Seconds(100), RunRules},
    {"kernels", "our device code against its CPU form", absl::Seconds(40),
     RunKernels},
    {"links", "how fast each GPU copies, alone and with all others",
     absl::Seconds(60), RunLinks},
    {"daemon", "memory of killed ranks, and ranks of a killed daemon",
     absl::Seconds(90), RunDaemon},
    {"torch", "what your torch has of what Sluice needs", absl::Seconds(90),
     RunTorch, /*needs_gpu=*/true, /*needs_python=*/true},
    {"gradients", "a streamed step on the GPU against torch on the CPU",
     absl::Seconds(180), RunGradients, /*needs_gpu=*/true,
     /*needs_python=*/true},
    {"training", "50 steps on the GPU against the CPU's curve",
     absl::Seconds(180), RunTraining, /*needs_gpu=*/true,
     /*needs_python=*/true},
    {"memory", "what a streamed step takes against what is promised",
     absl::Seconds(120), RunMemory, /*needs_gpu=*/true,
     /*needs_python=*/true},
    {"throughput", "how fast torch's kernels and a streamed step are",
     absl::Seconds(180), RunThroughput, /*needs_gpu=*/true,
     /*needs_python=*/true},
};
constexpr Check kSurvey = {"survey", "which GPUs nobody uses",
                           absl::Seconds(40), RunSurvey, /*needs_gpu=*/false};

}  // namespace

std::span<const Check> Checks() { return kChecks; }

const Check* FindCheck(const std::string& name) {
  for (const Check& check : kChecks) {
    if (name == check.name) return &check;
  }
  return name == kSurvey.name ? &kSurvey : nullptr;
}

}  // namespace sluice::verify
