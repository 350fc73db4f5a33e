// What all methods share: kernels' times, links, and putting a step together
// (internal to planner/train).
#pragma once

#include <vector>

#include "planner/stream/schedule.h"
#include "planner/train/estimate.h"

namespace sluice::planner::train {

inline constexpr double kElementBytes = 2;  // bf16

// One layer's kernels when `gpus` share a sequence. Attention skips masked
// blocks (causal) or computes the whole square.
PassTimes ForwardKernels(const Request& request, double gpus, bool causal);
PassTimes BackwardKernels(const Request& request, double gpus, bool causal);
// What rebuilds everything but attention and the FFN's output from the layer's
// input, for `fraction` of the tokens.
PassTimes RecomputeKernels(const Request& request, double gpus,
                           double fraction);
// Sets elementwise kernels to those of ATen, one operation at a time, as engine
// python of sluice runs them; backward recomputes `fraction` of the tokens.
void UnfusedKernels(const Request& request, double gpus, double fraction,
                    LayerTimes& layer);
// The same as engine trainer runs them (passes.h).
void FusedKernels(const Request& request, double gpus, double fraction,
                  stream::BackwardOrder order, LayerTimes& layer);
// Head, forward and backward, of one sequence.
double HeadSeconds(const Request& request, double gpus);

// Bytes of one hidden state of the tokens that one of `gpus` GPUs holds.
double HiddenBytes(const Request& request, double gpus);

// Bytes a second that a GPU sends to one of `gpus` GPUs: the GPU link inside a
// node, else the network.
double LinkBandwidth(const Hardware& hardware, double gpus);

// Bytes a second of a gather or scatter among `gpus` GPUs, `groups` of which
// share each node's network cards.
double CollectiveBandwidth(const Hardware& hardware, double gpus,
                           double groups = 1);

// Layers of the fullest pipeline stage.
double StageLayers(const Request& request, const Settings& settings);

// GPUs of a node that work on this run.
double GpusInNode(const Request& request);

// max(0, what the link takes - what hides it).
double Exposed(double link_s, double hidden_under_s);

// Seconds of the optimizer's kernels over `parameters`, of which the states of
// one in `shards` are updated here.
double OptimizerSeconds(const Request& request, double parameters,
                        double shards);

// What a method says of a step; Assemble makes the estimate of it.
struct StepParts {
  LayerTimes layer;
  double swapped_layers = 0;    // layers with exposed copies (default none)
  double reorganisation_s = 0;  // a sequence
  bool reorganisation_unknown = false;  // as in Estimate
  double gradient_sync_s = 0;           // a step
  double optimizer_s = 0;               // a step
  double states_copy_s = 0;             // a step: of the optimizer's, exposed
  GpuMemory memory;
  double gpu_usable_bytes = 0;
  double host_bytes_per_node = 0;
  double host_usable_bytes = 0;
};

Estimate Assemble(const Request& request, const Settings& settings,
                  const StepParts& parts);

// Method sluice by each engine. Settings are whole.
StepParts TrainerStep(const Request& request, const Settings& settings);
StepParts PythonStep(const Request& request, const Settings& settings);

// `settings` of sluice-train with the last chunks in HBM as far as it goes
// (none without `keep`), and where the host still has too little for alpha 0,
// the fewest of the first chunks run again, by several numbers of layers.
std::vector<Settings> PlaceChunks(const Request& request, Settings settings,
                                  bool keep);
// `settings` of the Python package with the fewest of the first chunks run
// again with which the host has enough.
Settings PlaceRerun(const Request& request, Settings settings);

}  // namespace sluice::planner::train
