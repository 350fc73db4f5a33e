#include "client/session/pending_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::client {
namespace {

uint32_t PartsOf(const wire::Reply& reply) {
  return reply.has_granted() ? std::max(1u, reply.granted().parts()) : 1;
}
uint32_t PartOf(const wire::Reply& reply) {
  return reply.has_granted() ? reply.granted().part() : 0;
}

}  // namespace

absl::StatusOr<wire::Packet> PendingCalls::Add(const wire::Request& request,
                                               std::vector<UniqueFd> fds,
                                               Waits waits) {
  if (waits == Waits::kNobody && Posted() >= kMostPosted) {
    return absl::ResourceExhaustedError(fmt::format(
        "sluiced has left {} requests unanswered: is it stopped?", Posted()));
  }
  if (request.has_step_report()) ForgetOldReports();
  wire::Packet packet;
  packet.set_id(next_id_++);
  *packet.mutable_request() = request;
  const uint64_t oldest = calls_.empty() ? packet.id() : calls_.begin()->first;
  packet.mutable_request()->set_answered_up_to(oldest - 1);
  calls_[packet.id()] = {
      .packet = packet, .fds = std::move(fds), .waits = waits};
  return packet;
}

size_t PendingCalls::Posted() const {
  return static_cast<size_t>(std::ranges::count_if(
      calls_,
      [](const auto& each) { return each.second.waits == Waits::kNobody; }));
}

void PendingCalls::ForgetOldReports() {
  const auto is_report = [](const auto& each) {
    return each.second.packet.request().has_step_report();
  };
  if (std::ranges::count_if(calls_, is_report) <
      static_cast<ptrdiff_t>(kMostReports)) {
    return;
  }
  calls_.erase(std::ranges::find_if(calls_, is_report));
}

void PendingCalls::Abandon(uint64_t id) {
  if (const auto call = calls_.find(id); call != calls_.end()) {
    call->second.waits = Waits::kNobody;
  }
}

bool PendingCalls::IsWhole(const Call& call) {
  return !call.parts.empty() &&
         call.parts.size() >=
             PartsOf(call.parts.begin()->second.packet.reply());
}

bool PendingCalls::complete(uint64_t id) const {
  const auto call = calls_.find(id);
  return call != calls_.end() && IsWhole(call->second);
}

void PendingCalls::Progressed(uint64_t id, absl::Time now) {
  if (const auto call = calls_.find(id); call != calls_.end()) {
    call->second.progressed_at = now;
  }
}

absl::Time PendingCalls::progressed_at(uint64_t id) const {
  const auto call = calls_.find(id);
  return call != calls_.end() ? call->second.progressed_at
                              : absl::InfinitePast();
}

std::optional<uint64_t> PendingCalls::Answer(wire::Message message) {
  const auto found = calls_.find(message.packet.id());
  if (found == calls_.end()) return std::nullopt;
  Call& call = found->second;
  call.unsent = false;
  call.parts[PartOf(message.packet.reply())] = std::move(message);
  if (call.waits == Waits::kCaller || !IsWhole(call)) return std::nullopt;
  const wire::Reply reply = call.parts.begin()->second.packet.reply();
  calls_.erase(found);
  if (!reply.has_granted()) return std::nullopt;
  return reply.granted().lease_id();
}

bool PendingCalls::Awaits(wire::Request::BodyCase kind) const {
  return std::ranges::any_of(calls_, [&](const auto& each) {
    return each.second.packet.request().body_case() == kind &&
           !IsWhole(each.second);
  });
}

std::vector<wire::Message> PendingCalls::Take(uint64_t id) {
  std::vector<wire::Message> parts;
  const auto call = calls_.find(id);
  for (auto& [part, message] : call->second.parts) {
    parts.push_back(std::move(message));
  }
  calls_.erase(call);
  return parts;
}

void PendingCalls::Restart() {
  for (auto& [id, call] : calls_) {
    if (IsWhole(call)) continue;  // complete: its caller is about to take it
    call.parts.clear();
    call.unsent = true;
  }
}

void PendingCalls::SendUnsent(Send send) {
  for (auto& [id, call] : calls_) {
    if (!call.unsent) continue;
    std::vector<int> fds;
    for (const UniqueFd& fd : call.fds) fds.push_back(fd.get());
    if (absl::IsResourceExhausted(send(call.packet, fds))) return;
    call.unsent = false;
  }
}

}  // namespace sluice::client
