// The page of `sluicectl plan train --html`: memory by class, the step, one
// layer's timeline, MFU over length. train_page.html draws what this writes
// into it as JSON. One file, no network, light and dark.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/desk/train_words.h"

namespace sluice::ctl {

// train_page.html, with @DATA@ where the JSON goes.
extern const char* const kTrainPage;

// What one method reaches at growing lengths, with its best settings; it ends
// at its longest sequence.
struct MfuCurve {
  std::string method;
  bool chosen = false;     // the method asked for, with the settings given
  bool validated = false;  // its speed on this machine, by a published table
  std::vector<std::pair<int64_t, double>> points;  // tokens, MFU as a fraction
};

std::string TrainPage(const TrainAnswer& answer,
                      const std::vector<MfuCurve>& curves);

}  // namespace sluice::ctl
