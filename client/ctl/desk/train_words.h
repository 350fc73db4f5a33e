// Formats a cost model's estimate for people. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/train/search.h"

namespace sluice::ctl {

// The answer of one method to a request.
struct MethodAnswer {
  planner::train::Request request;  // the request with this answer's method
  planner::train::Estimate estimate;
  planner::train::LongestSequence longest;
};

// The answer of `sluicectl plan train`.
struct TrainAnswer {
  planner::train::Request request;
  planner::train::Estimate estimate;
  std::optional<planner::train::LongestSequence> longest;
  // Changes that would make it fit, the smallest first. Empty if it fits.
  std::vector<planner::train::Remedy> remedies;
  planner::train::IdleGpus idle;
  std::string batch_source;  // the flags that state the sequences per step
  // With --compare: the answers of all methods, including the requested one.
  std::vector<MethodAnswer> methods;
};

// Named parts of the step's seconds or of the GPU's bytes, also those that are
// 0.
using NamedParts = std::vector<std::pair<const char*, double>>;
NamedParts StepParts(const planner::train::Breakdown& breakdown);
NamedParts MemoryParts(const planner::train::GpuMemory& memory);

// Formats "TP 4, CP 2, ZeRO 1, alpha 0.5", without degrees of 1, and how many
// GPUs are idle.
std::string SettingsText(const planner::train::Request& request,
                         const planner::train::Settings& settings);
nlohmann::ordered_json SettingsJson(const planner::train::Request& request,
                                    const planner::train::Settings& settings);
// Formats "does not fit: needs 91 GiB of a GPU, 72 GiB are usable".
std::string ReasonText(const TrainAnswer& answer);
// Formats "not validated: no published table has sluice on h100-80g".
std::string SpeedEvidence(const planner::train::Request& request);
std::string MemoryEvidence(const planner::train::Request& request);
// False if the GPUs cannot be divided as requested.
bool HasMemory(const planner::train::Estimate& estimate);
// Returns one sentence for each fact besides the figures.
std::vector<std::string> NotesOf(const TrainAnswer& answer);

std::string TrainWords(const TrainAnswer& answer);
// The object of --json: speeds are null if the request does not fit.
nlohmann::ordered_json TrainObject(const TrainAnswer& answer);

// ---- The page of --html: one file without network access ----

// The text of train_page.html, with @DATA@ where the JSON belongs.
extern const char* const kTrainPage;

// A method's MFU with its best settings, at growing lengths.
struct MfuCurve {
  std::string method;
  bool chosen = false;     // the requested method, with the given settings
  bool validated = false;  // a published table has its speed on this machine
  std::vector<std::pair<int64_t, double>> points;  // tokens, MFU as a fraction
};

std::string TrainPage(const TrainAnswer& answer,
                      const std::vector<MfuCurve>& curves);

}  // namespace sluice::ctl
