// Collectives that tell the rank's watch when they begin and end, so that a
// rank that waits is distinguished from the one it waits for. Collectives of
// GPUs end when they are issued; there the counts of begun ones distinguish the
// ranks.
// Thread safety: as Collectives.
#pragma once

#include <memory>

#include "client/torch/ranks/collectives.h"
#include "client/train/watch/rank_watch.h"

namespace sluice::train {

// `watch` outlives the result. Collectives of tensors on `device` are watched
// here; the others are passed on and watched there. Barriers are the CPU's.
std::unique_ptr<runtime::Collectives> Watched(
    std::unique_ptr<runtime::Collectives> collectives, RankWatch* watch,
    at::DeviceType device = at::kCPU);

}  // namespace sluice::train
