#include "planner/train/evidence.h"

#include "planner/train/published.h"

namespace sluice::planner::train {
namespace {

bool IsShipped(const Hardware& hardware, const std::string& name) {
  const absl::StatusOr<Hardware> shipped = FindHardware(name);
  return shipped.ok() && hardware == *shipped;
}

}  // namespace

Evidence EvidenceOf(const Request& request) {
  Evidence evidence;
  if (IsShipped(request.hardware, kMemoHardware)) {
    for (const PublishedCell& cell : PublishedCells()) {
      if (cell.method != request.method) continue;
      evidence.speed = evidence.memory = "MEMO, tables 3 to 7";
      return evidence;
    }
  }
  for (const PublishedRow& row : PublishedRows()) {
    // ALST's rows were in view when its constants were fixed.
    if (!row.judged || row.method != request.method ||
        row.method == Method::kAlst ||
        !IsShipped(request.hardware, row.hardware)) {
      continue;
    }
    std::string& of = row.seq_len > 0 ? evidence.speed : evidence.memory;
    if (of.find(row.publication) != std::string::npos) continue;
    of += (of.empty() ? "" : ", ") + row.publication;
  }
  if (request.method != Method::kFpdt) return evidence;
  for (const PublishedLength& row : PublishedLengths()) {
    if (!IsShipped(request.hardware, row.hardware)) continue;
    evidence.memory = "FPDT, table 1";
    break;
  }
  return evidence;
}

}  // namespace sluice::planner::train
