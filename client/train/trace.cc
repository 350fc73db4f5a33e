#include "client/train/trace.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "proto/base/status.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

Json Copies(const std::vector<client::CopyRecord>& records,
            device::CopyDirection direction) {
  Json list = Json::array();
  for (const client::CopyRecord& r : records) {
    if (r.direction != direction) continue;
    list.push_back({{"name", r.label},
                    {"bytes", r.size.count()},
                    {"issued_s", r.issued_s},
                    {"start_s", r.started_s},
                    {"end_s", r.finished_s}});
  }
  return list;
}

// The segments as their blocks show them: from the first allocation to the
// last free. Runs of one kind are told apart where none of its blocks lived.
Json Compute(std::vector<runtime::BlockRecord> blocks) {
  std::sort(blocks.begin(), blocks.end(),
            [](const auto& a, const auto& b) { return a.born_s < b.born_s; });
  Json list = Json::array();
  std::string_view name;
  double start = 0, end = 0;
  const auto close = [&] {
    if (name.empty()) return;
    list.push_back(
        {{"name", std::string(name)}, {"start_s", start}, {"end_s", end}});
  };
  for (const runtime::BlockRecord& b : blocks) {
    if (b.segment.empty() || b.died_s < b.born_s) continue;
    if (b.segment != name || b.born_s > end) {
      close();
      name = b.segment;
      start = end = b.born_s;
    }
    end = std::max(end, b.died_s);
  }
  close();
  return list;
}

Json Blocks(const std::vector<runtime::BlockRecord>& records) {
  Json list = Json::array();
  for (const runtime::BlockRecord& r : records) {
    list.push_back({{"offset", r.offset.count()},
                    {"size", r.size.count()},
                    {"born_s", r.born_s},
                    {"died_s", r.died_s},
                    {"segment", std::string(r.segment)}});
  }
  return list;
}

}  // namespace

StepTrace::StepTrace(const StepperContext& context, Stepper* stepper, bool on)
    : context_(context),
      stepper_(stepper),
      on_(on && context.environment->rank == 0) {
  if (!on_) return;
  stepper_->TakeCopies();  // of the steps before
  context_.memory->allocator().RecordBlocks(true);
}

absl::Status StepTrace::Write(const std::string& path) {
  if (!on_) return absl::OkStatus();
  runtime::RegionAllocator& allocator = context_.memory->allocator();
  allocator.RecordBlocks(false);
  const auto copies = stepper_->TakeCopies();
  const auto blocks = allocator.TakeBlocks();
  const Json json = {
      {"compute", Compute(blocks)},
      {"h2d", Copies(copies, device::CopyDirection::kHostToDevice)},
      {"d2h", Copies(copies, device::CopyDirection::kDeviceToHost)},
      {"blocks", Blocks(blocks)},
      {"hbm_bytes", context_.memory->size().count()},
      {"planned_bytes", allocator.stats().planned.count()}};
  std::ofstream out(path);
  out << json.dump() << "\n";
  out.close();
  return out ? absl::OkStatus() : ErrnoStatus(errno, "--trace " + path);
}

}  // namespace sluice::train
