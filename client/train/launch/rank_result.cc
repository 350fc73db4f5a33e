#include "client/train/launch/rank_result.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/train/launch/outcome.h"
#include "proto/base/peer_fault.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

RankResult MakeResult(const absl::Status& status, const std::string& report) {
  return {ExitCode(status),
          std::string(status.message()),
          LimitedBy(status),
          IsCausedByPeer(status),
          false,
          report};
}

absl::Status WriteResult(const std::string& path, const RankResult& result) {
  const Json json = {{"exit", result.exit},
                     {"message", result.message},
                     {"limited_by", result.limited_by},
                     {"caused_by_peer", result.caused_by_peer},
                     {"interrupted", result.interrupted},
                     {"report", result.report}};
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary);
  out << json.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.close();
  if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, "write " + path);
  }
  return absl::OkStatus();
}

absl::StatusOr<RankResult> ReadResult(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError("no result at " + path);
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InternalError("broken " + path);
  RankResult result;
  result.exit = json.value("exit", kExitFault);
  result.message = json.value("message", "");
  result.limited_by = json.value("limited_by", "none");
  result.caused_by_peer = json.value("caused_by_peer", false);
  result.interrupted = json.value("interrupted", false);
  result.report = json.value("report", "");
  return result;
}

}  // namespace sluice::train
