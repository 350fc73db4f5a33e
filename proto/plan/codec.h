// Encodes profiles and plans as versioned JSON, so that people can read a plan
// in a checkpoint. Decoding refuses unknown and repeated keys; InvalidArgument
// names the field, its value and the limit in one line. Doubles survive a round
// trip bit for bit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::plan {

inline constexpr int kFormatVersion = 2;

// Limits that decoding enforces.
inline constexpr size_t kMaxEncodedBytes = size_t{256} << 20;
inline constexpr size_t kMaxRanks = 1024;
inline constexpr size_t kMaxSegments = 1024;    // per rank
inline constexpr size_t kMaxClasses = 1024;     // per rank
inline constexpr size_t kMaxKinds = 64;         // of layers, per rank
inline constexpr int64_t kMaxLayers = 1 << 20;  // of all kinds, per rank
inline constexpr size_t kMaxBuffers = 1 << 20;  // per trace
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr int64_t kMaxAmount = int64_t{1} << 50;  // bytes, per field
inline constexpr int64_t kMaxTime = int64_t{1} << 53;    // of a trace

std::string Encode(const RankProfile& profile);
std::string Encode(const std::vector<RankProfile>& profiles);
std::string Encode(const PlanRequest& request);
std::string Encode(const NodePlan& plan);

absl::StatusOr<RankProfile> DecodeRankProfile(std::string_view bytes);
absl::StatusOr<std::vector<RankProfile>> DecodeProfiles(std::string_view bytes);
absl::StatusOr<PlanRequest> DecodePlanRequest(std::string_view bytes);
absl::StatusOr<NodePlan> DecodeNodePlan(std::string_view bytes);

// Returns a stable 128-bit hash of the encoded profiles, in hex. Keys of the
// plan cache contain it. The hash is not cryptographic, so a process that
// adopts a cached plan must validate that plan with its profile (validate.h).
std::string HashProfiles(const std::vector<RankProfile>& profiles);

}  // namespace sluice::plan
