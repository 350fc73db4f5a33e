// What the methods on Ulysses sequence parallelism and ZeRO share (internal to
// planner/train).
#pragma once

#include "planner/train/layer.h"

namespace sluice::planner::train {

// Seconds in which a GPU gets `bytes` evenly from `ranks` ranks, itself one.
double AllToAllSeconds(const Hardware& hardware, double bytes, double ranks);

// Seconds of a layer's all-to-alls in one pass: q, k, v there and o back.
double ExchangeSeconds(const Request& request, double sp);

// Bytes of weights, gradients and optimizer states on a GPU.
double ZeroStates(const Request& request, int zero, double gradient_bytes);

// Adds what ZeRO sends: once a step what is not sharded for every sequence;
// gradients per layer from stage 2 on, weights `weight_passes` times per layer
// with 3, as far as a layer does not hide them, of which `busy_s` hide nothing.
// Call it when the layer's kernels are set.
void AddZero(const Request& request, int zero, int weight_passes,
             double gradient_bytes, StepParts& parts, double busy_s = 0);

// Adds what ALST and UPipe share: the tiled MLP runs forward a third time,
// inside its own backward; a layer's input leaves and comes back on the compute
// stream's own time.
void AddTiledMlp(const Request& request, double gpus, LayerTimes& layer);
void AddInputCopies(const Request& request, double gpus, LayerTimes& layer);

}  // namespace sluice::planner::train
