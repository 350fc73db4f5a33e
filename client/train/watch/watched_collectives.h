// Collectives that report to the rank's watch when they begin and end, so that
// the watchdog can distinguish a waiting rank from the rank that it waits for.
// Collectives of GPUs end when they are issued; there the counts of begun
// collectives distinguish the ranks.
//
// Thread safety: as Collectives.
#pragma once

#include <memory>

#include "client/torch/ranks/collectives.h"
#include "client/train/watch/rank_watch.h"

namespace sluice::train {

// Wraps `collectives`. `watch` outlives the result. Collectives of tensors on
// `device` are watched here; those of other tensors are passed on to a watched
// object inside. Barriers are the CPU's.
std::unique_ptr<runtime::Collectives> Watched(
    std::unique_ptr<runtime::Collectives> collectives, RankWatch* watch,
    at::DeviceType device = at::kCPU);

}  // namespace sluice::train
