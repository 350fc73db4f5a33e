// Profiles and plans as bytes: versioned JSON, so that a plan in a checkpoint
// can be read by a person. Decode checks every field and length; InvalidArgument
// names the field, its value and the limit.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::plan {

inline constexpr int kFormatVersion = 1;

std::string Encode(const RankProfile& profile);
std::string Encode(const std::vector<RankProfile>& profiles);
std::string Encode(const NodePlan& plan);

absl::StatusOr<RankProfile> DecodeRankProfile(std::string_view bytes);
absl::StatusOr<std::vector<RankProfile>> DecodeProfiles(std::string_view bytes);
absl::StatusOr<NodePlan> DecodeNodePlan(std::string_view bytes);

// A stable 128-bit hash in hex of a profile's encoding: the plan cache's key.
std::string HashProfiles(const std::vector<RankProfile>& profiles);

}  // namespace sluice::plan
