#include "daemon/core/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

size_t TextOf(const std::optional<Reply>& reply) {
  const auto* error = reply ? std::get_if<absl::Status>(&*reply) : nullptr;
  return error != nullptr ? error->message().size() : 0;
}

}  // namespace

RequestHistory::Seen RequestHistory::Begin(RequestId id) {
  if (const auto known = requests_.find(id); known != requests_.end()) {
    return known->second.has_value() ? Seen::kAnswered : Seen::kRunning;
  }
  if (id <= newest_forgotten_) return Seen::kForgotten;
  // There are few running requests: leases are limited by their pool, waiting
  // leases by their quota, and profiles by the packet rate.
  ForgetAnswered([this](RequestId) {
    return requests_.size() >= kWindow || text_ > kMostText;
  });
  requests_.Insert(id);
  return Seen::kNew;
}

void RequestHistory::Answer(RequestId id, const Reply& reply) {
  std::optional<Reply>& answer = requests_.Edit(id);
  SLUICE_CHECK(!answer.has_value());
  answer = reply;
  text_ += TextOf(answer);
}

void RequestHistory::Acknowledge(RequestId up_to) {
  ForgetAnswered([up_to](RequestId id) { return id <= up_to; });
}

void RequestHistory::ForgetAnswered(auto more) {
  for (auto each = requests_.begin();
       each != requests_.end() && more(each->first);) {
    const auto& [id, reply] = *each++;
    if (reply.has_value()) Forget(RequestId(id));
  }
}

void RequestHistory::Forget(RequestId id) {
  newest_forgotten_ = std::max(newest_forgotten_, id);
  text_ -= TextOf(requests_.at(id));
  requests_.erase(id);
}

void RequestHistory::TakeBack(RequestId id, const absl::Status& why) {
  std::optional<Reply>* known = requests_.Find(id);
  if (known == nullptr) return;  // dropped, because many requests came after it
  text_ -= TextOf(*known);
  known->reset();
  Answer(id, why);
}

void RequestHistory::Load(Requests::Rows requests, RequestId newest_forgotten) {
  requests_.Load(std::move(requests));
  newest_forgotten_ = newest_forgotten;
  text_ = 0;
  for (const auto& [id, reply] : requests_) text_ += TextOf(reply);
}

void RequestHistory::Clear() {
  while (!requests_.empty()) Forget(RequestId(requests_.begin()->first));
}

void RequestHistory::LeaseEnded(RequestId id) {
  std::optional<Reply>* known = requests_.Find(id);
  if (known == nullptr || !known->has_value()) return;
  if (auto* granted = std::get_if<GrantedReply>(&**known)) {
    granted->slices = {};
  }
}

void RequestHistory::ForgetRunning(const std::set<RequestId>& but_for) {
  requests_.EraseIf([&](RequestId id, const std::optional<Reply>& reply) {
    return !reply.has_value() && !but_for.contains(id);
  });
}

void Session::Answer(RequestId request, Reply reply, Effects& effects) {
  history.Answer(request, reply);
  effects.push_back(SendReply{id, request, std::move(reply)});
}

std::string Session::Label() const {
  if (hello.observer) return "observer";
  return fmt::format("rank {} of job {}", hello.rank.value(), hello.job);
}

std::string Session::Described() const {
  if (state == State::kHalfOpen) return fmt::format("process {}", peer.pid);
  return fmt::format("{}, process {}", Label(), peer.pid);
}

}  // namespace sluice::daemon
