// A cost model's estimate for people. Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/train/search.h"

namespace sluice::ctl {

// What `sluicectl plan train` has found.
struct TrainAnswer {
  planner::train::Request request;
  planner::train::Estimate estimate;
  std::optional<planner::train::LongestSequence> longest;
};

// Named parts that add up: of the step in seconds, of the GPU in bytes. Those
// that are 0 are there too.
using NamedParts = std::vector<std::pair<const char*, double>>;
NamedParts StepParts(const planner::train::Breakdown& breakdown);
NamedParts MemoryParts(const planner::train::GpuMemory& memory);

// "TP 4, CP 2, ZeRO 1, alpha 0.5": what is not 1.
std::string SettingsText(const planner::train::Request& request,
                         const planner::train::Settings& settings);
// "needs 91 GiB of a GPU, 72 GiB are usable".
std::string ReasonText(const planner::train::Estimate& estimate);

std::string TrainWords(const TrainAnswer& answer);
std::string TrainJson(const TrainAnswer& answer);

}  // namespace sluice::ctl
