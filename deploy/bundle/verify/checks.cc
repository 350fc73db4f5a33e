#include <fmt/format.h>

#include <cstdlib>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "deploy/bundle/verify/check.h"
#include "kernels/device/driver.h"
#include "proto/base/file_text.h"

namespace sluice::verify {
namespace {

using nlohmann::json;

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";
// A GPU is busy if more than 1/16 of its memory is in use. Idle contexts of
// other processes use less.
constexpr int kIdlePart = 16;

constexpr Check OfTorch(const char* name, const char* what, int limit_s) {
  return {name,
          what,
          absl::Seconds(limit_s),
          RunTorch,
          /*needs_gpu=*/true,
          /*needs_python=*/true};
}

// Without the checks of torch, the limits add up to less than ten minutes.
constexpr Check kChecks[] = {
    {"doctor", "what the machine offers, and how to get what it lacks",
     absl::Seconds(40), RunDoctor, /*needs_gpu=*/false},
    {"conformance", "the device seam's suite, on every GPU and on pairs",
     absl::Seconds(180), RunConformance},
    {"rules", "what the driver answers to calls that break assumed rules",
     absl::Seconds(100), RunRules},
    {"kernels", "our device code against its CPU form", absl::Seconds(40),
     RunKernels},
    {"links", "how fast each GPU copies, alone and with all others",
     absl::Seconds(60), RunLinks},
    {"daemon", "memory of killed ranks, and ranks of a killed daemon",
     absl::Seconds(90), RunDaemon},
    OfTorch("torch", "whether your torch has what Sluice needs", 90),
    OfTorch("gradients", "a streamed step on the GPU against torch on the CPU",
            180),
    OfTorch("training", "50 steps on the GPU against the CPU's curve", 180),
    OfTorch("memory", "the memory of a streamed step against the promise", 120),
    OfTorch("throughput", "how fast torch's kernels and a streamed step are",
            180),
};
constexpr Check kSurvey = {"survey", "which GPUs are free", absl::Seconds(40),
                           RunSurvey, /*needs_gpu=*/false};

}  // namespace

const char* Name(Status status) {
  switch (status) {
    case Status::kPassed:
      return "passed";
    case Status::kFailed:
      return "failed";
    case Status::kSkipped:
      return "skipped";
  }
  return "?";
}

json ToJson(const Result& result) {
  return {{"name", result.name},         {"status", Name(result.status)},
          {"seconds", result.seconds},   {"value", result.value},
          {"expected", result.expected}, {"reason", result.reason}};
}

Result ReadResult(const std::string& path, const std::string& bad_end) {
  const json told =
      json::parse(TextOf(path), nullptr, /*allow_exceptions=*/false);
  Result result;
  if (!told.is_object() || !told.contains("status")) {
    result.reason = "it left no result";
  } else {
    const std::string status = told.value("status", "");
    if (status == Name(Status::kPassed)) result.status = Status::kPassed;
    if (status == Name(Status::kSkipped)) result.status = Status::kSkipped;
    result.value = told.value("value", json());
    result.expected = told.value("expected", "");
    result.reason = told.value("reason", "");
  }
  if (bad_end.empty()) return result;
  const bool said_why = told.is_object() && result.status == Status::kFailed;
  result.reason = (said_why ? result.reason + "; " : "") + bad_end;
  result.status = Status::kFailed;
  return result;
}

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t before = text.rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, end + 1 - begin);
}

std::span<const Check> Checks() { return kChecks; }

const Check* FindCheck(const std::string& name) {
  for (const Check& check : kChecks) {
    if (name == check.name) return &check;
  }
  return name == kSurvey.name ? &kSurvey : nullptr;
}

void ShowOnly(const std::vector<int>& gpus) {
  // This process's own list (as set by Slurm), by which it numbers the GPUs.
  static const std::string told = [] {
    const char* const text = std::getenv(kVisible);
    return std::string(text != nullptr ? text : "");
  }();
  std::string list = absl::StrJoin(gpus, ",");
  if (!told.empty()) {
    const std::vector<std::string> names = absl::StrSplit(told, ',');
    list = absl::StrJoin(gpus, ",", [&](std::string* out, int gpu) {
      out->append(names.at(static_cast<size_t>(gpu)));
    });
  }
  setenv(kVisible, list.c_str(), 1);
}

Result RunSurvey(const Surroundings&) {
  const char* const expected = "a driver with a GPU";
  const auto driver = device::OpenCudaDriver();
  if (!driver.ok()) return Failed({}, expected, driver.status());
  const auto devices = (*driver)->Devices();
  if (!devices.ok()) return Failed({}, expected, devices.status());
  json free = json::array(), busy = json::array();
  for (const device::DeviceInfo& gpu : *devices) {
    const auto place = device::Placement::Gpu(gpu.index);
    const auto use = (*driver)->Usage(place);
    if (!use.ok()) {
      return Failed({}, expected,
                    fmt::format("GPU {}: {}", gpu.index.value(),
                                std::string(use.status().message())));
    }
    if (use->used.count() > use->total.count() / kIdlePart) {
      busy.push_back(fmt::format("GPU {}: {} of {} are in use",
                                 gpu.index.value(), FormatBytes(use->used),
                                 FormatBytes(use->total)));
    } else {
      free.push_back(gpu.index.value());
    }
  }
  return Passed({{"free", free}, {"busy", busy}}, expected);
}

}  // namespace sluice::verify
