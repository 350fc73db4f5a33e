// A trace with the names from its file: the planner plans `trace`, and messages
// and output use the names.
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
  // names[k] is the name of trace.buffers[k], without control characters. Names
  // are distinct if the format's are ("7", and "7#2" for an id that is
  // allocated again after its free).
  std::vector<std::string> names;
  // The unit of trace time, for output: "requests", "lines", "time".
  std::string time_unit = "time";
  // The source, for output: "MiniMalloc CSV", "PyTorch trace, cuda:0".
  std::string source;
  // A CSV's header and rows as given, without line ends and without its own
  // `offset` column. The plan repeats them.
  std::string csv_header;
  std::vector<std::string> csv_rows;
  // Notes for the user: assumptions made where the input is ambiguous.
  std::vector<std::string> notes;
};

}  // namespace sluice::planner
