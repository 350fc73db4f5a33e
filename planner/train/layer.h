// Functions that methods share: kernel times, links, sequence parallelism with
// ZeRO, and the assembly of a step (internal to planner/train).
#pragma once

#include <vector>

#include "planner/stream/schedule.h"
#include "planner/train/estimate.h"

namespace sluice::planner::train {

inline constexpr double kElementBytes = 2;  // bf16

// Return one layer's kernel times when `gpus` GPUs share a sequence. If
// `causal`, attention skips masked blocks; else it computes the whole square.
PassTimes ForwardKernels(const Request& request, double gpus, bool causal);
PassTimes BackwardKernels(const Request& request, double gpus, bool causal);
// Returns the kernel times of recomputing a layer from its input for `fraction`
// of the tokens, except attention and the FFN's output.
PassTimes RecomputeKernels(const Request& request, double gpus,
                           double fraction);
// Set the elementwise times. UnfusedKernels is for engine python, which runs
// ATen's kernels, one per operation; FusedKernels is for engine trainer's
// kernels (passes.h). Backward recomputes `fraction` of the tokens.
void UnfusedKernels(const Request& request, double gpus, double fraction,
                    LayerTimes& layer);
void FusedKernels(const Request& request, double gpus, double fraction,
                  stream::BackwardOrder order, LayerTimes& layer);
// Returns the seconds of the head's forward and backward for one sequence.
double HeadSeconds(const Request& request, double gpus);
// Returns the projections to q, k and v as a share of a layer's matmuls.
double QkvShare(const ModelShape& model);
// Returns the bytes of a hidden state of the tokens on one of `gpus` GPUs.
double HiddenBytes(const Request& request, double gpus);

// Returns the bytes per second between two GPUs of a group of `gpus`: over the
// GPU link if the group is inside a node, else over the network.
double LinkBandwidth(const Hardware& hardware, double gpus);
// Returns the bytes per second of a gather or scatter among `gpus` GPUs when
// `groups` such groups share each node's network cards.
double CollectiveBandwidth(const Hardware& hardware, double gpus,
                           double groups = 1);

// Returns the layers of the largest pipeline stage.
double StageLayers(const Request& request, const Settings& settings);
// Returns the GPUs of one node that the run uses.
double GpusInNode(const Request& request);
// Returns the host memory that a daemon pins at most on one node.
double PinnableBytes(const Request& request);

// Returns the exposed part of a copy: max(0, link_s - hidden_under_s).
double Exposed(double link_s, double hidden_under_s);
// Returns the seconds of the optimizer's kernels over `parameters`, of which
// this GPU updates 1 / `shards` of the states.
double OptimizerSeconds(const Request& request, double parameters,
                        double shards);

// A method's description of a step. Assemble makes the estimate from it.
struct StepParts {
  LayerTimes layer;
  double swapped_layers = 0;            // layers with exposed copies
  double reorganisation_s = 0;          // per sequence
  bool reorganisation_unknown = false;  // as in Estimate
  double gradient_sync_s = 0;           // per step
  double optimizer_s = 0;               // per step
  double states_copy_s = 0;  // per step: exposed copies of optimizer states
  GpuMemory memory;
  double gpu_usable_bytes = 0;
  double host_bytes_per_node = 0;
  double host_usable_bytes = 0;
};

// Returns a step's parts with kernel times when `gpus` GPUs share a sequence,
// all layers are swapped, and the optimizer is sharded over all GPUs.
StepParts StartStep(const Request& request, double gpus, bool causal = true);
Estimate Assemble(const Request& request, const Settings& settings,
                  const StepParts& parts);

// --- Ulysses sequence parallelism and ZeRO ----------------------------------

// Returns the seconds in which a rank receives `bytes`, in equal parts from all
// `ranks` ranks including itself.
double AllToAllSeconds(const Hardware& hardware, double bytes, double ranks);
// Returns the seconds of one pass's all-to-alls of q, k, v and o.
double ExchangeSeconds(const Request& request, double sp);

// Returns the bytes of weights, gradients and optimizer states on a GPU.
double ZeroStates(const Request& request, int zero, double gradient_bytes);

// Adds ZeRO's traffic. Data that is not sharded is sent once per step. From
// stage 2 on, gradients are sent per layer and sequence, and with stage 3 also
// weights, `weight_passes` times; both overlap with a layer's compute, except
// for `busy_s` seconds, in which other traffic uses the link. Call it after the
// kernel times are set.
void AddZero(const Request& request, int zero, int weight_passes,
             double gradient_bytes, StepParts& parts, double busy_s = 0);

// Adds a third forward of the tiled MLP, which ALST and UPipe run inside the
// MLP's backward.
void AddTiledMlp(const Request& request, double gpus, LayerTimes& layer);
// Adds the copies of a layer's offloaded input. They run on the compute stream,
// so they are exposed.
void AddInputCopies(const Request& request, double gpus, LayerTimes& layer);

// Return the step of method sluice for each engine. Settings must be complete.
StepParts TrainerStep(const Request& request, const Settings& settings);
StepParts PythonStep(const Request& request, const Settings& settings);

// Returns `settings` of sluice-train with as many last chunks in HBM as fit
// (none without `keep`). If host memory is too small even at alpha 0, returns
// several settings that rerun as few first chunks as possible, each with
// another number of layers per group.
std::vector<Settings> PlaceChunks(const Request& request, Settings settings,
                                  bool keep);
// Returns `settings` of the Python package that rerun as few first chunks as
// host memory requires.
Settings PlaceRerun(const Request& request, Settings settings);

}  // namespace sluice::planner::train
