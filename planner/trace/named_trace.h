// A trace with the names from its file. The planner plans `trace`; messages and
// output use the names.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan/profile.h"

namespace sluice::planner {

struct NamedTrace {
  plan::Trace trace;
  // names[k] is the name of trace.buffers[k], without control characters. Names
  // are distinct if the format's names are (a request log's id that is
  // allocated again after its free becomes "7#2").
  std::vector<std::string> names;
  // The unit of trace time, for output: "requests", "lines", "time".
  std::string time_unit = "time";
  // The source, for output: "MiniMalloc CSV", "PyTorch trace, cuda:0".
  std::string source;
  // A CSV's header and rows as in the file, without line ends and without its
  // own `offset` column. The output repeats them.
  std::string csv_header;
  std::vector<std::string> csv_rows;
  // Notes for the user about assumptions made where the input is ambiguous.
  std::vector<std::string> notes;
};

}  // namespace sluice::planner
