// A check, which runs in a process of its own: what it is given, and the table
// of all of them.
//
// Thread safety: a check has its process for itself.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "deploy/bundle/verify/result.h"

namespace sluice::verify {

// In the folder of all checks: what is not sent.
inline constexpr char kScratch[] = "scratch";

struct Surroundings {
  std::string work;  // a folder for this check; what it leaves there is sent
  // As this process counts them, without the busy ones.
  std::vector<int> gpus;
  std::string busy;    // "GPU 1: 12 GiB are others'"; empty: none is
  std::string python;  // the user's, with the torch to check; absolute
  absl::Duration limit;
};

struct Check {
  const char* name;
  const char* what;  // for people, one line
  absl::Duration limit;
  Result (*run)(const Surroundings&);
  bool needs_gpu = true;
  // Checks the user's torch, on one GPU: needs --python.
  bool needs_python = false;
};

// In the order in which they run.
std::span<const Check> Checks();
// Null: there is no such check.
const Check* FindCheck(const std::string& name);

// Each in its own file.
Result RunSurvey(const Surroundings&);  // survey.cc: which GPUs are free
Result RunDoctor(const Surroundings&);
Result RunConformance(const Surroundings&);
Result RunRules(const Surroundings&);
Result RunKernels(const Surroundings&);
Result RunLinks(const Surroundings&);
Result RunDaemon(const Surroundings&);
Result RunTorch(const Surroundings&);  // torch.cc, and those below
Result RunGradients(const Surroundings&);
Result RunTraining(const Surroundings&);
Result RunMemory(const Surroundings&);
Result RunThroughput(const Surroundings&);

}  // namespace sluice::verify
