// Readers of the files that users give to sluicectl.
#include <cmath>

#include "client/ctl/desk/plan_commands.h"
#include "planner/train/hardware.h"
#include "planner/train/settings.h"
#include "proto/base/status.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {

// Reading already checks the node; the solver checks it again.
void ReadAsNode(std::string_view bytes) {
  const auto problem = ctl::ReadSwapProblem(bytes);
  if (!problem.ok()) return CheckComplaint(problem.status());
  SLUICE_CHECK_OK(planner::CheckNodeSwap(*problem));
}

void ReadAsModel(std::string_view bytes) {
  const auto model = planner::train::ReadHuggingFaceConfig(bytes, "fuzz");
  if (!model.ok()) return CheckComplaint(model.status());
  SLUICE_CHECK_OK(model->Validate());
  SLUICE_CHECK(std::isfinite(model->parameters()) && model->parameters() > 0);
}

void ReadAsHardware(std::string_view bytes) {
  const auto hardware = planner::train::ReadHardware(bytes, "fuzz");
  if (!hardware.ok()) return CheckComplaint(hardware.status());
  SLUICE_CHECK(hardware->gpus_per_node >= 1);
  SLUICE_CHECK(std::isfinite(hardware->peak_flops));
}

const std::vector<Reader>& Readers() {
  static const std::vector<Reader> readers = {{"trace", ReadAsTrace},
                                              {"node", ReadAsNode},
                                              {"model", ReadAsModel},
                                              {"hardware", ReadAsHardware}};
  return readers;
}

}  // namespace sluice::fuzz
