// Collectives that tell the rank's watch when they begin and end, so that a
// rank that waits for another one is told from the one it waits for.
// Thread safety: as Collectives.
#pragma once

#include <memory>

#include "client/torch/ranks/collectives.h"
#include "client/train/watch/rank_watch.h"

namespace sluice::train {

// `watch` outlives the result.
std::unique_ptr<runtime::Collectives> Watched(
    std::unique_ptr<runtime::Collectives> collectives, RankWatch* watch);

}  // namespace sluice::train
