// What our own profiler writes: rank profiles (proto/plan/codec.h) and the
// blocks of a step (sluice-train --trace).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "planner/trace/builder.h"
#include "planner/trace/formats.h"
#include "planner/trace/json_records.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"

namespace sluice::planner {
namespace {

// A name from a file, fit for a row of the plan.
std::string CleanName(std::string name) {
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == ',') c = '?';
  }
  return name;
}

// ---- Rank profiles ---------------------------------------------------------

absl::StatusOr<std::vector<plan::RankProfile>> Decode(std::istream& in) {
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof(block)) || in.gcount() > 0) {
    text.append(block, static_cast<size_t>(in.gcount()));
    if (text.size() > plan::kMaxEncodedBytes) break;  // Decode says so
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

// Segments run one after another: each is a mark, and its trace follows that
// of the one before.
absl::StatusOr<NamedTrace> Join(const plan::RankProfile& profile,
                                const TraceOptions& options, Bytes alignment) {
  TraceBuilder builder(alignment);
  int64_t start = 0;
  for (const plan::SegmentKind& segment : profile.segments) {
    const std::string name = CleanName(segment.name);
    // Times of a trace may begin anywhere.
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
    builder.out().marks.push_back(
        {.name = name, .lower = start, .upper = start + length});
    start += length;
  }
  builder.out().source =
      fmt::format("profile of rank {}", profile.rank.value());
  builder.out().time_unit = "requests";
  return builder.Take(start);
}

// ---- Blocks of a step ------------------------------------------------------

struct Block {
  int64_t size = 0;
  double born = 0;
  double died = 0;  // < born: alive to the end
  std::string segment;
  int64_t index = 0;
};

enum EventField { kSize, kBorn, kDied, kSegment };

bool ParseSeconds(const JsonField& field, double* value) {
  if (field.kind != JsonField::Kind::kNumber &&
      field.kind != JsonField::Kind::kInteger) {
    return false;
  }
  char* end = nullptr;
  *value = std::strtod(field.text.c_str(), &end);
  return *end == '\0' && *value >= -1e15 && *value <= 1e15;
}

absl::StatusOr<std::vector<Block>> ReadBlocks(std::istream& in,
                                              const TraceOptions& options) {
  std::vector<Block> blocks;
  const RecordQuery query = {.array = "blocks",
                             .fields = {"size", "born_s", "died_s", "segment"}};
  const auto take = [&](const JsonRecord& record) {
    Block block{.index = record.index};
    const auto wrong = [&](const char* field, int which) {
      return At(
          {.file = options.file},
          fmt::format("blocks[{}].{} = {} is missing or nonsense", record.index,
                      field, Quoted(record.fields[which].text)));
    };
    if (!ParseInt(record.fields[kSize].text, &block.size) || block.size < 0) {
      return wrong("size", kSize);
    }
    if (!ParseSeconds(record.fields[kBorn], &block.born)) {
      return wrong("born_s", kBorn);
    }
    if (!ParseSeconds(record.fields[kDied], &block.died)) {
      return wrong("died_s", kDied);
    }
    block.segment = CleanName(record.fields[kSegment].text);
    blocks.push_back(std::move(block));
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(ReadJsonRecords(in, options.file, query, take));
  return blocks;
}

// Runs of one segment with no other between, from the first birth to the last
// death of its blocks, as far as they do not run into the next.
std::vector<Mark> MarksOf(const NamedTrace& named,
                          const std::vector<Block>& blocks) {
  std::vector<Mark> marks;
  for (size_t k = 0; k < blocks.size(); ++k) {
    const plan::Buffer& b = named.trace.buffers[k];
    const std::string& segment = blocks[k].segment;
    if (segment.empty()) continue;
    if (marks.empty() || marks.back().name != segment ||
        b.lower >= marks.back().upper) {
      if (!marks.empty()) {
        marks.back().upper = std::min(marks.back().upper, b.lower);
      }
      marks.push_back({segment, b.lower, b.upper});
    }
    marks.back().upper = std::max(marks.back().upper, b.upper);
  }
  std::erase_if(marks, [](const Mark& m) { return m.lower >= m.upper; });
  return marks;
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

absl::StatusOr<NamedTrace> ReadRunTrace(std::istream& in,
                                        const TraceOptions& options,
                                        Bytes alignment) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Block> blocks, ReadBlocks(in, options));
  std::ranges::stable_sort(blocks, {}, &Block::born);
  // Clock readings to whole times: 2k for the k-th distinct one, so that a
  // block that died when it was born has its own moment, 2k to 2k + 1.
  std::vector<double> times;
  for (const Block& b : blocks) {
    times.push_back(b.born);
    times.push_back(b.died);
  }
  std::ranges::sort(times);
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto at = [&](double seconds) {
    return 2 * (std::lower_bound(times.begin(), times.end(), seconds) -
                times.begin());
  };
  TraceBuilder builder(alignment);
  for (const Block& b : blocks) {
    const int64_t lower = at(b.born);
    const int64_t upper =
        b.died < b.born ? kStillAlive : std::max(at(b.died), lower + 1);
    const absl::Status added =
        builder.Add(fmt::to_string(builder.size()), lower, upper, b.size);
    if (!added.ok()) {
      return At(
          {.file = options.file},
          fmt::format("blocks[{}]: {}", b.index, std::string(added.message())));
    }
  }
  builder.out().source = "sluice-train trace";
  NamedTrace named = builder.Take(2 * static_cast<int64_t>(times.size()) + 1);
  named.marks = MarksOf(named, blocks);
  return named;
}

}  // namespace sluice::planner
