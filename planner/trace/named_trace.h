// A trace as it was read: what the planner plans, and what people call it.
//
// Plain data; thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan/profile.h"

namespace sluice::planner {

// One execution of a piece of work ("layer.forward", "qkv.forward.full"):
// times [lower, upper) of the trace. Executions of the same piece have the
// same name, not necessarily the same requests.
struct Mark {
  std::string name;
  int64_t lower = 0;
  int64_t upper = 0;
};

struct NamedTrace {
  plan::Trace trace;
  // Of trace.buffers[k]: distinct where the format's are ("7", and "7#2" for
  // an id that came back after its free), free of control characters.
  std::vector<std::string> names;
  // By lower; empty where the format has none.
  std::vector<Mark> marks;
  // What a unit of trace time is, for people: "request", "line", "time".
  std::string time_unit = "time";
};

}  // namespace sluice::planner
