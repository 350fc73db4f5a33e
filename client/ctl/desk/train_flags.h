// The flags of `sluicectl plan train`, and their conversion to a request.
// Thread safety: pure functions, except that they read files.
#pragma once

#include <CLI/App.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/settings.h"

namespace sluice::ctl {

struct TrainFlags {
  std::string model;
  std::optional<int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  std::string arch;  // gpt, llama; empty: llama with --swiglu, else gpt
  bool swiglu = false;
  std::string hardware;
  int64_t gpus = 0;
  std::optional<int64_t> seq_len;
  std::string method = "sluice";
  std::string engine;  // empty: the better one
  planner::train::GivenSettings given;
  std::string alpha = "auto";
  std::string recompute;  // empty: the fastest that fits
  // Sequences per step: their total, or the batch and its accumulation.
  std::optional<int64_t> global_batch, batch, accumulate;
  // Returns those of "--batch" and "--accumulate" that were given.
  std::vector<std::string> batch_flags() const;
  bool max_seq_len = false;
  double max_step_s = std::numeric_limits<double>::infinity();
  bool asks_longest() const { return max_seq_len || std::isfinite(max_step_s); }
  bool compare = false;
  bool json = false;
  std::string html;
};

void AddTrainFlags(CLI::App& app, TrainFlags& flags);

// An error names the flag, its value and the allowed values. seq_len is 0 if
// the user asks only for the longest sequence.
absl::StatusOr<planner::train::Request> TrainRequest(const TrainFlags& flags);
absl::StatusOr<planner::train::GivenSettings> TrainSettings(
    const TrainFlags& flags);

}  // namespace sluice::ctl
