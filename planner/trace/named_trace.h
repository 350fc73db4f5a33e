// A trace as it was read: what the planner plans, and what people call it.
//
// Plain data; thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan/profile.h"

namespace sluice::planner {

struct NamedTrace {
  plan::Trace trace;
  // names[k] of trace.buffers[k]: distinct where the format's are ("7", and
  // "7#2" for an id that came back after its free), without control characters.
  std::vector<std::string> names;
  // What trace time counts, for people: "requests", "lines", "time".
  std::string time_unit = "time";
  // What was read, for people: "MiniMalloc CSV", "PyTorch trace, cuda:0".
  std::string source;
  // A CSV's header and rows as given, without line ends and without an `offset`
  // column of its own; the plan repeats them.
  std::string csv_header;
  std::vector<std::string> csv_rows;
  // Said to the user: what was assumed where the input leaves a choice.
  std::vector<std::string> notes;
};

}  // namespace sluice::planner
