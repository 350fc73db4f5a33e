// Functions shared by the methods that use Ulysses sequence parallelism and
// ZeRO (internal to planner/train).
#pragma once

#include "planner/train/layer.h"

namespace sluice::planner::train {

// Returns the seconds in which a GPU receives `bytes` in equal parts from
// `ranks` ranks, including itself.
double AllToAllSeconds(const Hardware& hardware, double bytes, double ranks);

// Returns the seconds of one pass's all-to-alls in a layer, of q, k, v and of
// o.
double ExchangeSeconds(const Request& request, double sp);

// Returns the bytes of weights, gradients and optimizer states on a GPU.
double ZeroStates(const Request& request, int zero, double gradient_bytes);

// Adds ZeRO's traffic. Data that is not sharded for every sequence is sent once
// per step. From stage 2 on, gradients are sent per layer, and with stage 3
// also weights, `weight_passes` times per layer; compute hides these, except
// for `busy_s` of a layer. Call it after the layer's kernels are set.
void AddZero(const Request& request, int zero, int weight_passes,
             double gradient_bytes, StepParts& parts, double busy_s = 0);

// AddTiledMlp adds a third forward of the tiled MLP, which ALST and UPipe run
// inside its backward. AddInputCopies adds the copies of a layer's input, which
// is offloaded and fetched on the compute stream, so the copies are exposed.
void AddTiledMlp(const Request& request, double gpus, LayerTimes& layer);
void AddInputCopies(const Request& request, double gpus, LayerTimes& layer);

}  // namespace sluice::planner::train
