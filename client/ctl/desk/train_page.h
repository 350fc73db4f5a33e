// The page of `sluicectl plan train --html`: memory by class, the step, one
// layer's timeline, MFU over length. One file, no network, light and dark.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/ctl/desk/train_words.h"

namespace sluice::ctl {

struct MfuPoint {
  int64_t tokens = 0;
  double mfu = 0;  // fraction
};

// What one method reaches at growing lengths, with its best settings; it ends
// at its longest sequence.
struct MfuCurve {
  std::string method;
  bool chosen = false;     // the method asked for, with the settings given
  bool validated = false;  // its speed on this machine, by a published table
  std::vector<MfuPoint> points;
};

std::string TrainPage(const TrainAnswer& answer,
                      const std::vector<MfuCurve>& curves);

}  // namespace sluice::ctl
