// Helpers of codec.cc and codec_profile.cc.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/json_reader.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/units.h"

namespace sluice::plan {

inline constexpr double kMaxSeconds = 1e9;
inline constexpr int64_t kMaxId = std::numeric_limits<int64_t>::max();
// The limit of a sum over a trace, so that the sum is exact in int64.
inline constexpr int64_t kMaxTotal = int64_t{1} << 60;
inline constexpr size_t kMaxTextBytes = 1024;
inline constexpr int64_t kMaxCount = int64_t{1} << 40;

template <typename T>
nlohmann::json WriteAll(const std::vector<T>& items,
                        nlohmann::json (*write)(const T&)) {
  nlohmann::json list = nlohmann::json::array();
  for (const T& item : items) list.push_back(write(item));
  return list;
}

Bytes ReadBytes(FieldReader& in, const char* key);
// Reads a name that is not empty and not in `taken`, and adds it to `taken`.
std::string ReadName(FieldReader& in, std::set<std::string>* taken);
// Does the same with a class's "name" and "kind", which is absent if the rank
// has only one kind of layers.
void ReadClassName(FieldReader& in, std::set<std::string>* taken,
                   std::string* kind, std::string* name);
void WriteKindName(const std::string& kind, nlohmann::json* written);

nlohmann::json Write(const RankProfile& profile);
RankProfile ReadRankProfile(FieldReader& in);
nlohmann::json Write(const Trace& trace);
nlohmann::json Write(const Placement& placement);
nlohmann::json WriteUnits(const std::vector<UnitPlan>& units);
Trace ReadTrace(FieldReader in);
Placement ReadPlacement(FieldReader in);
// Reads the list `key` and checks every placement with ValidatePlacement.
std::vector<UnitPlan> ReadUnits(FieldReader& in, const char* key);

// Adds the envelope and formats the document. `format` names its kind, so that
// decoding cannot mistake a plan for a profile.
std::string Finish(nlohmann::json document, const char* format);

// Parses `bytes`, checks the envelope, and reads the document with `read`.
template <typename Read>
auto Decode(std::string_view bytes, const char* format, Read read)
    -> absl::StatusOr<decltype(read(std::declval<FieldReader&>()))> {
  absl::Status status;
  const nlohmann::json document =
      ParseChecked(bytes, kMaxEncodedBytes, &status);
  const auto name = [&] { return Annotate(status, format); };
  if (!status.ok()) return name();
  FieldReader in(document, "", &status);
  in.Choice("format", {format});
  in.Int("version", kFormatVersion, kFormatVersion);
  if (!status.ok()) return name();
  auto result = read(in);
  in.Finish();
  if (!status.ok()) return name();
  return result;
}

}  // namespace sluice::plan
