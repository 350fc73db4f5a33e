// Shared by all methods: kernel times, links, and assembling a step (internal
// to planner/train).
#pragma once

#include <vector>

#include "planner/stream/schedule.h"
#include "planner/train/estimate.h"

namespace sluice::planner::train {

inline constexpr double kElementBytes = 2;  // bf16

// Returns one layer's kernel times when `gpus` GPUs share a sequence. Attention
// skips masked blocks (`causal`) or computes the whole square.
PassTimes ForwardKernels(const Request& request, double gpus, bool causal);
PassTimes BackwardKernels(const Request& request, double gpus, bool causal);
// Returns the times of recomputing everything except attention and the FFN's
// output from the layer's input, for `fraction` of the tokens.
PassTimes RecomputeKernels(const Request& request, double gpus,
                           double fraction);
// Sets the elementwise kernels to ATen's, one operation at a time, as sluice's
// engine python runs them. Backward recomputes `fraction` of the tokens.
void UnfusedKernels(const Request& request, double gpus, double fraction,
                    LayerTimes& layer);
// The same for engine trainer (passes.h).
void FusedKernels(const Request& request, double gpus, double fraction,
                  stream::BackwardOrder order, LayerTimes& layer);
// Returns the seconds of the head, forward and backward, for one sequence.
double HeadSeconds(const Request& request, double gpus);

// Returns the bytes of one hidden state of the tokens that one of `gpus` GPUs
// holds.
double HiddenBytes(const Request& request, double gpus);

// Returns the bytes per second that a GPU sends to one of `gpus` GPUs: over the
// GPU link inside a node, else over the network.
double LinkBandwidth(const Hardware& hardware, double gpus);

// Returns the bytes per second of a gather or scatter among `gpus` GPUs, when
// `groups` groups share each node's network cards.
double CollectiveBandwidth(const Hardware& hardware, double gpus,
                           double groups = 1);

// Returns the layers of the largest pipeline stage.
double StageLayers(const Request& request, const Settings& settings);

// Returns the GPUs of a node that this run uses.
double GpusInNode(const Request& request);

// Returns max(0, link_s - hidden_under_s).
double Exposed(double link_s, double hidden_under_s);

// Returns the seconds of the optimizer's kernels over `parameters`, when one of
// `shards` of the states is updated here.
double OptimizerSeconds(const Request& request, double parameters,
                        double shards);

// A method's description of a step, from which Assemble makes the estimate.
struct StepParts {
  LayerTimes layer;
  double swapped_layers = 0;    // layers with exposed copies (default none)
  double reorganisation_s = 0;  // per sequence
  bool reorganisation_unknown = false;  // as in Estimate
  double gradient_sync_s = 0;           // per step
  double optimizer_s = 0;               // per step
  double states_copy_s = 0;  // per step: exposed copies of optimizer states
  GpuMemory memory;
  double gpu_usable_bytes = 0;
  double host_bytes_per_node = 0;
  double host_usable_bytes = 0;
};

Estimate Assemble(const Request& request, const Settings& settings,
                  const StepParts& parts);

// The steps of method sluice by engine. Settings must be complete.
StepParts TrainerStep(const Request& request, const Settings& settings);
StepParts PythonStep(const Request& request, const Settings& settings);

// Returns sluice-train's `settings` with as many last chunks in HBM as fit
// (none without `keep`). If host memory is still too small at alpha 0, as few
// of the first chunks as possible run again, in groups of several numbers of
// layers.
std::vector<Settings> PlaceChunks(const Request& request, Settings settings,
                                  bool keep);
// Returns the Python package's `settings` with as few of the first chunks run
// again as host memory requires.
Settings PlaceRerun(const Request& request, Settings settings);

}  // namespace sluice::planner::train
