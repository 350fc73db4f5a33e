#include "daemon/service/rank_grants.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/core/node/links.h"
#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

UniqueFd TakeLimits(Handover& handover) {
  UniqueFd kept = handover.Take(Handover::kLimits);
  const absl::Status of_use =
      kept ? GrantPages::CheckLimits(kept) : absl::OkStatus();
  if (of_use.ok()) return kept;
  WriteLog(LogLevel::kError, std::string(of_use.message()));
  handover.Drop(Handover::kLimits);
  return UniqueFd();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankGrants>> RankGrants::Start(
    Parts parts, std::vector<LinkSpeed> links) {
  SLUICE_ASSIGN_OR_RETURN(
      auto pages, GrantPages::Start(std::move(links), parts.node->generation,
                                    parts.clock, TakeLimits(*parts.handover)));
  return std::unique_ptr<RankGrants>(new RankGrants(parts, std::move(pages)));
}

int RankGrants::LinkIndexOf(DeviceIndex gpu) const {
  const std::vector<size_t> path =
      LinkPath(parts_.node->links, parts_.node->gpus[gpu.value()].link);
  return path.empty() ? -1 : static_cast<int>(path[0]);
}

void RankGrants::Take(int slot, const Principal& who) {
  slots_[slot] = who;
  crash_ranks = static_cast<int>(slots_.size());
  parts_.quotas->Charge(who, Resource::kRanks);
}

RankGrants::UsePage RankGrants::Attach(const AttachGrants& effect,
                                       const Principal& who) {
  Take(effect.slot, who);
  auto page = pages_->Attach(effect.slot, LinkIndexOf(effect.gpu),
                             {who, effect.weight, /*holds=*/false});
  if (!page.ok()) {
    no_page_ = page.status();
    WriteLog(LogLevel::kError, std::string(no_page_.message()));
    return nullptr;
  }
  return use_pages_[effect.session] =
             std::make_shared<const UniqueFd>(*std::move(page));
}

absl::Status RankGrants::Resume(const Session& rank, double weight,
                                bool holds) {
  auto page = std::make_shared<const UniqueFd>(
      parts_.handover->Take(Handover::UsePageOf(rank.id)));
  SLUICE_RETURN_IF_ERROR(
      pages_->Resume(rank.grant_slot, LinkIndexOf(rank.hello.gpu),
                     {rank.peer.principal, weight, holds}, *page));
  Take(rank.grant_slot, rank.peer.principal);
  use_pages_[rank.id] = std::move(page);
  return absl::OkStatus();
}

void RankGrants::Detach(int slot) {
  pages_->Detach(slot);
  auto whose = slots_.extract(slot);
  if (whose.empty()) return;  // belongs to a rank that was not taken over
  crash_ranks = static_cast<int>(slots_.size());
  parts_.quotas->GiveBack(whose.mapped(), Resource::kRanks);
}

void RankGrants::DropUsePage(SessionId id) {
  parts_.handover->Drop(Handover::UsePageOf(id));
  use_pages_.erase(id);
}

absl::StatusOr<RankGrants::UsePage> RankGrants::UsePageOf(SessionId id) const {
  const auto page = use_pages_.find(id);
  if (page != use_pages_.end()) return page->second;
  return absl::ResourceExhaustedError(
      fmt::format("no grant page could be made for this session: {}",
                  std::string(no_page_.message())));
}

}  // namespace sluice::daemon
