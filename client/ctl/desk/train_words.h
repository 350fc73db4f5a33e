// A cost model's estimate for people. Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/desk/train_methods.h"
#include "planner/train/remedy.h"
#include "planner/train/search.h"

namespace sluice::ctl {

// What `sluicectl plan train` has found.
struct TrainAnswer {
  planner::train::Request request;
  planner::train::Estimate estimate;
  std::optional<planner::train::LongestSequence> longest;
  // Where it does not fit: the changes that help, the nearest first.
  std::vector<planner::train::Remedy> remedies;
  planner::train::IdleGpus idle;
  std::string batch_source;  // the flags that state the sequences per step
  // With --compare: every method, the one asked for among them.
  std::vector<MethodAnswer> methods;
};

// Named parts that add up: of the step in seconds, of the GPU in bytes. Those
// that are 0 are there too.
using NamedParts = std::vector<std::pair<const char*, double>>;
NamedParts StepParts(const planner::train::Breakdown& breakdown);
NamedParts MemoryParts(const planner::train::GpuMemory& memory);

// "TP 4, CP 2, ZeRO 1, alpha 0.5": what is not 1, and how many GPUs are idle.
std::string SettingsText(const planner::train::Request& request,
                         const planner::train::Settings& settings);
nlohmann::ordered_json SettingsJson(const planner::train::Request& request,
                                    const planner::train::Settings& settings);
// "does not fit: needs 91 GiB of a GPU, 72 GiB are usable".
std::string ReasonText(const TrainAnswer& answer);
// "not validated: no published table has sluice on h100-80g".
std::string SpeedEvidence(const planner::train::Request& request);
std::string MemoryEvidence(const planner::train::Request& request);
// Whether memory was estimated of a division of the GPUs that there is.
bool HasMemory(const planner::train::Estimate& estimate);
// What is to be known beside the figures, a sentence each.
std::vector<std::string> NotesOf(const TrainAnswer& answer);

std::string TrainWords(const TrainAnswer& answer);
// What --json prints.
nlohmann::ordered_json TrainObject(const TrainAnswer& answer);

}  // namespace sluice::ctl
