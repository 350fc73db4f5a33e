// Shared by the methods on Ulysses sequence parallelism and ZeRO (internal to
// planner/train).
#pragma once

#include "planner/train/layer.h"

namespace sluice::planner::train {

// Returns the seconds in which a GPU receives `bytes` in equal parts from
// `ranks` ranks, itself included.
double AllToAllSeconds(const Hardware& hardware, double bytes, double ranks);

// Returns the seconds of a layer's all-to-alls in one pass: of q, k, v and of
// o.
double ExchangeSeconds(const Request& request, double sp);

// Returns the bytes of weights, gradients and optimizer states on a GPU.
double ZeroStates(const Request& request, int zero, double gradient_bytes);

// Adds ZeRO's traffic: once per step what is not sharded for every sequence;
// gradients per layer from stage 2 on, and with stage 3 weights `weight_passes`
// times per layer, as far as a layer's compute does not hide them (`busy_s` of
// it hides nothing). Call it after the layer's kernels are set.
void AddZero(const Request& request, int zero, int weight_passes,
             double gradient_bytes, StepParts& parts, double busy_s = 0);

// Adds what ALST and UPipe share: the tiled MLP runs forward a third time,
// inside its own backward; a layer's input is offloaded and fetched on the
// compute stream, exposed.
void AddTiledMlp(const Request& request, double gpus, LayerTimes& layer);
void AddInputCopies(const Request& request, double gpus, LayerTimes& layer);

}  // namespace sluice::planner::train
