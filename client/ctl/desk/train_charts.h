// The pictures of the cost model's page, as SVG (internal to client/ctl).
// Colours are the page's classes; texts are escaped.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/desk/train_page.h"

namespace sluice::ctl {

// The class of `part`'s colour: "attention" is "attention" everywhere.
std::string ColourOf(const std::string& part);
// A part's name for people: "exposed copy".
std::string PartTitle(const std::string& part);

// A horizontal bar of `parts`, `whole` at full width, with a mark at `limit`
// (0: none) that says `limit_text`.
std::string StackedBar(const NamedParts& parts, double whole, double limit,
                       const std::string& limit_text, bool bytes);

// One layer, forward and backward: what computes, and what is on the links
// meanwhile.
std::string LayerTimeline(const planner::train::LayerTimes& layer);

// MFU over length; `asked` is marked, with no MFU where it does not fit.
std::string MfuChart(const std::vector<MfuCurve>& curves, int64_t asked,
                     std::optional<double> asked_mfu);

}  // namespace sluice::ctl
