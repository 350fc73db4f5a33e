// The flags of `sluicectl plan train`, and what they ask for.
//
// Thread safety: pure functions, but for reading the files that flags name.
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
  std::string arch;  // gpt, llama; empty: gpt, or llama with swiglu
  bool swiglu = false;
  std::string hardware;
  int64_t gpus = 0;
  std::optional<int64_t> seq_len;
  std::string method = "sluice";
  std::string engine;  // empty: the better one
  planner::train::GivenSettings given;
  std::string alpha = "auto";
  std::string recompute;  // empty: the fastest that fits
  // Sequences per step; as one number, or as micro-batches of some.
  std::optional<int64_t> global_batch, batch, accumulate;
  // "--batch --accumulate": those of the two that are given.
  std::vector<std::string> batch_flags() const;
  bool max_seq_len = false;
  double max_step_s = std::numeric_limits<double>::infinity();
  bool asks_longest() const { return max_seq_len || std::isfinite(max_step_s); }
  bool compare = false;
  bool json = false;
  std::string html;
};

// Adds all of them to `app`; they are parsed into `flags`.
void AddTrainFlags(CLI::App& app, TrainFlags& flags);

// What is asked: a fault names the flag, its value and what it may be.
// seq_len is 0 where only the longest is asked for.
absl::StatusOr<planner::train::Request> TrainRequest(const TrainFlags& flags);
absl::StatusOr<planner::train::GivenSettings> TrainSettings(
    const TrainFlags& flags);

}  // namespace sluice::ctl
