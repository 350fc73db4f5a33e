// Collectives that tell the rank's watch when they begin and end, so that a
// rank that waits for another one is told from the one it waits for. Those of
// GPUs end when they are issued: what tells there is who has begun more.
// Thread safety: as Collectives.
#pragma once

#include <memory>

#include "client/torch/ranks/collectives.h"
#include "client/train/watch/rank_watch.h"

namespace sluice::train {

// `watch` outlives the result. `device`: whose tensors it is for; what else the
// collectives take they hand to others that are watched themselves. Barriers
// are the CPU's.
std::unique_ptr<runtime::Collectives> Watched(
    std::unique_ptr<runtime::Collectives> collectives, RankWatch* watch,
    at::DeviceType device = at::kCPU);

}  // namespace sluice::train
