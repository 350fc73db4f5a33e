// Makes the page of `sluicectl plan train --html`, one file without network
// access: train_page.html, which draws the JSON that is inserted into it.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/desk/train_words.h"

namespace sluice::ctl {

// The text of train_page.html, with @DATA@ where the JSON belongs.
extern const char* const kTrainPage;

// A method's MFU with its best settings, at growing lengths.
struct MfuCurve {
  std::string method;
  bool chosen = false;     // the requested method, with the given settings
  bool validated = false;  // a published table has its speed on this machine
  std::vector<std::pair<int64_t, double>> points;  // tokens, MFU as a fraction
};

std::string TrainPage(const TrainAnswer& answer,
                      const std::vector<MfuCurve>& curves);

}  // namespace sluice::ctl
