// Reads rank profiles (proto/plan/codec.h), as Sluice's profiler writes them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planner/trace/json_records.h"
#include "planner/trace/readers.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

absl::StatusOr<std::vector<plan::RankProfile>> Decode(std::istream& in) {
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof(block)) || in.gcount() > 0) {
    text.append(block, static_cast<size_t>(in.gcount()));
    if (text.size() > plan::kMaxEncodedBytes) break;  // Decode reports it
  }
  const std::vector<std::string> keys = RootKeys(text);
  const auto has = [&](const char* key) {
    return std::ranges::find(keys, key) != keys.end();
  };
  if (has("resources")) {
    SLUICE_ASSIGN_OR_RETURN(auto request, plan::DecodePlanRequest(text));
    return std::move(request.profiles);
  }
  if (has("profiles")) return plan::DecodeProfiles(text);
  SLUICE_ASSIGN_OR_RETURN(auto profile, plan::DecodeRankProfile(text));
  return std::vector<plan::RankProfile>{std::move(profile)};
}

absl::StatusOr<size_t> ChooseRank(
    const std::vector<plan::RankProfile>& profiles,
    const TraceOptions& options) {
  std::vector<std::string> ranks;
  for (const plan::RankProfile& profile : profiles) {
    ranks.push_back(fmt::to_string(profile.rank.value()));
  }
  if (options.device.empty() && ranks.size() == 1) return 0;
  const auto found = std::ranges::find(ranks, options.device);
  if (found != ranks.end()) return static_cast<size_t>(found - ranks.begin());
  return At({.file = options.file},
            options.device.empty()
                ? fmt::format("has the profiles of {} ranks ({}): choose one "
                              "with --device",
                              ranks.size(), fmt::join(ranks, ", "))
                : fmt::format("has no profile of rank {}, only of {}",
                              Quoted(options.device), fmt::join(ranks, ", ")));
}

// Appends the traces of the segments, which run one after another.
absl::StatusOr<NamedTrace> Join(const plan::RankProfile& profile,
                                const TraceOptions& options, Bytes alignment) {
  TraceBuilder builder(alignment);
  int64_t start = 0;
  for (const plan::SegmentKind& segment : profile.segments) {
    const std::string name = CleanName(segment.name);
    // A segment's trace may begin at any time.
    int64_t first = segment.trace.end;
    for (const plan::Buffer& b : segment.trace.buffers) {
      first = std::min(first, b.lower);
    }
    const int64_t length = std::max<int64_t>(segment.trace.end - first, 1);
    if (length > kMaxTraceTime - start) {
      return At({.file = options.file},
                fmt::format("segment {} makes the times run beyond {}",
                            Quoted(name), kMaxTraceTime));
    }
    for (const plan::Buffer& b : segment.trace.buffers) {
      const absl::Status added =
          builder.Add(fmt::format("{}/{}", name, b.id), b.lower - first + start,
                      b.upper - first + start, b.size.count());
      if (!added.ok()) {
        return At({.file = options.file}, std::string(added.message()));
      }
    }
    start += length;
  }
  builder.out().source =
      fmt::format("profile of rank {}", profile.rank.value());
  builder.out().time_unit = "requests";
  return builder.Take(start);
}

}  // namespace

absl::StatusOr<NamedTrace> ReadProfile(std::istream& in,
                                       const TraceOptions& options,
                                       Bytes alignment) {
  auto profiles = Decode(in);
  if (!profiles.ok()) {
    return At({.file = options.file}, std::string(profiles.status().message()));
  }
  SLUICE_ASSIGN_OR_RETURN(const size_t rank, ChooseRank(*profiles, options));
  return Join((*profiles)[rank], options, alignment);
}

}  // namespace sluice::planner
