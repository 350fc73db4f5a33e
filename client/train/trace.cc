#include "client/train/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

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

Json Compute(const std::vector<runtime::SegmentRun>& runs) {
  Json list = Json::array();
  for (const runtime::SegmentRun& r : runs) {
    list.push_back({{"name", std::string(r.kind)},
                    {"start_s", r.start_s},
                    {"end_s", r.end_s}});
  }
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

std::string EndTrace(runtime::RankMemory& memory,
                     const std::vector<client::CopyRecord>& copies) {
  runtime::RegionAllocator& allocator = memory.allocator();
  allocator.RecordTimeline(false);
  const auto blocks = allocator.TakeBlocks();
  const Json json = {
      {"compute", Compute(allocator.TakeRuns())},
      {"h2d", Copies(copies, device::CopyDirection::kHostToDevice)},
      {"d2h", Copies(copies, device::CopyDirection::kDeviceToHost)},
      {"blocks", Blocks(blocks)},
      {"hbm_bytes", memory.size().count()},
      {"planned_bytes", allocator.stats().planned.count()}};
  return json.dump() + "\n";
}

absl::Status WriteTrace(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  return out ? absl::OkStatus() : ErrnoStatus(errno, "--trace " + path);
}

absl::Status CheckTracePath(const std::string& path) {
  const bool was_there = access(path.c_str(), F_OK) == 0;
  const UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd) {
    const int error = errno;
    return BadInput(fmt::format("--trace {}: {}; name a file in a folder that "
                                "can be written",
                                path, std::strerror(error)),
                    error);
  }
  if (!was_there) unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace sluice::train
