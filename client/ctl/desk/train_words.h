// Formats a cost model's estimate for people. Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/desk/train_methods.h"
#include "planner/train/search.h"

namespace sluice::ctl {

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

// Named parts of a sum: of the step's seconds or of the GPU's bytes. Parts that
// are 0 are included.
using NamedParts = std::vector<std::pair<const char*, double>>;
NamedParts StepParts(const planner::train::Breakdown& breakdown);
NamedParts MemoryParts(const planner::train::GpuMemory& memory);

// Formats "TP 4, CP 2, ZeRO 1, alpha 0.5": the settings that differ from 1, and
// the number of idle GPUs.
std::string SettingsText(const planner::train::Request& request,
                         const planner::train::Settings& settings);
nlohmann::ordered_json SettingsJson(const planner::train::Request& request,
                                    const planner::train::Settings& settings);
// Formats "does not fit: needs 91 GiB of a GPU, 72 GiB are usable".
std::string ReasonText(const TrainAnswer& answer);
// Formats "not validated: no published table has sluice on h100-80g".
std::string SpeedEvidence(const planner::train::Request& request);
std::string MemoryEvidence(const planner::train::Request& request);
// Returns whether the estimate has memory, which it lacks if the GPUs cannot be
// divided as requested.
bool HasMemory(const planner::train::Estimate& estimate);
// Returns one sentence for each fact that people should know besides the
// figures.
std::vector<std::string> NotesOf(const TrainAnswer& answer);

std::string TrainWords(const TrainAnswer& answer);
// Returns the object that --json prints.
nlohmann::ordered_json TrainObject(const TrainAnswer& answer);

}  // namespace sluice::ctl
