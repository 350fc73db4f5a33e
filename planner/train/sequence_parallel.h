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
// with 3, as far as compute does not hide them. Call it when the layer's
// kernels are set.
void AddZero(const Request& request, int zero, int weight_passes,
             double gradient_bytes, StepParts& parts);

}  // namespace sluice::planner::train
