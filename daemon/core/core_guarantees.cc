// Guaranteed rates: what of a link is promised to which rank, and what is left
// of it where a daemon takes over.
#include <fmt/format.h>

#include <utility>

#include "daemon/core/core.h"
#include "daemon/core/links.h"
#include "proto/base/status.h"

namespace sluice::daemon {

LinkSpeed Core::LinkOf(DeviceIndex gpu) const {
  for (const LinkSpeed& link : config_.links) {
    if (link.name == config_.gpus.at(gpu.value()).link) return link;
  }
  return {};
}

Promised Core::PromisedOn(const std::string& link,
                          const Session& besides) const {
  Promised promised;
  for (const auto& [id, session] : sessions_) {
    const double rate = session.guaranteed_bytes_per_second;
    if (rate == 0 || !session.is_rank() || id == besides.id) continue;
    const std::string& own = config_.gpus[session.hello.gpu.value()].link;
    if (!Loads(config_.links, own, link)) continue;
    promised.all += rate;
    if (session.peer.principal == besides.peer.principal) {
      promised.to_principal += rate;
    }
  }
  return promised;
}

absl::Status Core::AdmitOnPath(const Session& session, double asked,
                               double scale) const {
  const std::string& own = config_.gpus.at(session.hello.gpu.value()).link;
  bool limited = false;
  for (const size_t i : LinkPath(config_.links, own)) {
    const LinkSpeed& link = config_.links[i];
    if (!IsLimited(link)) continue;
    limited = true;
    Promised promised = PromisedOn(link.name, session);
    promised.all *= scale;
    promised.to_principal *= scale;
    SLUICE_RETURN_IF_ERROR(AdmitGuarantee(link, asked * scale, promised));
  }
  if (limited) return absl::OkStatus();
  return AdmitGuarantee(LinkOf(session.hello.gpu), asked, {});  // says why not
}

GuaranteeLeft Core::KeepOnPath(const Session& session, double had) const {
  const std::string& own = config_.gpus.at(session.hello.gpu.value()).link;
  GuaranteeLeft left{had, ""};
  bool limited = false;
  for (const size_t i : LinkPath(config_.links, own)) {
    const LinkSpeed& link = config_.links[i];
    if (!IsLimited(link)) continue;
    limited = true;
    GuaranteeLeft here = KeepGuarantee(link, left.bytes_per_second,
                                       PromisedOn(link.name, session));
    if (!here.why.empty()) left = std::move(here);
  }
  if (limited) return left;
  const absl::Status why = AdmitGuarantee(LinkOf(session.hello.gpu), had, {});
  return {0, std::string(why.message())};
}

std::string Core::Guarantee(Session& session, RequestId request,
                            absl::Time now) {
  const double asked = session.hello.guaranteed_bytes_per_second;
  if (!(asked > 0)) return "";
  const Principal& principal = session.peer.principal;
  const absl::Status admitted = AdmitOnPath(session, asked);
  if (admitted.ok()) {
    session.guaranteed_bytes_per_second = asked;
    return "";
  }
  Log(now, EventKind::kRefuse,
      fmt::format("{}: {}", session.Label(), std::string(admitted.message())),
      principal, {session.id, request});
  return std::string(admitted.message());
}

void Core::KeepGuarantees(const std::set<SessionId>& reached, absl::Time now,
                          Effects& effects) {
  std::vector<std::pair<SessionId, double>> had;
  for (const auto& [id, session] : sessions_) {
    if (session.is_rank() && session.guaranteed_bytes_per_second > 0) {
      had.emplace_back(id, session.guaranteed_bytes_per_second);
    }
  }
  for (const auto& [id, rate] : had) {
    sessions_.Edit(id).guaranteed_bytes_per_second = 0;
  }
  for (const auto& [id, rate] : had) {
    if (!reached.contains(id)) continue;
    Session& session = sessions_.Edit(id);
    const GuaranteeLeft left = KeepOnPath(session, rate);
    session.guaranteed_bytes_per_second = left.bytes_per_second;
    if (left.why.empty()) continue;
    session.guarantee_lowered = LoweredText(rate, left);
    effects.push_back(
        LowerGuarantee{session.grant_slot, left.bytes_per_second});
    Log(now, EventKind::kRefuse,
        fmt::format("{}: {}", session.Label(), session.guarantee_lowered),
        session.peer.principal, {id});
  }
}

// No link has promised more than it carries, to all or to one.
void Core::CheckGuarantees() const {
  for (const auto& [id, session] : sessions_) {
    const double rate = session.guaranteed_bytes_per_second;
    if (rate == 0) continue;
    SLUICE_CHECK(rate > 0);
    const double asked = session.hello.guaranteed_bytes_per_second;
    SLUICE_CHECK(session.guarantee_lowered.empty() ? rate == asked
                                                   : rate < asked);
    if (!session.is_rank()) continue;
    // It would be admitted again beside the others.
    constexpr double kRounding = 1 - 1e-9;
    SLUICE_CHECK(AdmitOnPath(session, rate, kRounding).ok());
  }
}

}  // namespace sluice::daemon
