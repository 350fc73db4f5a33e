#include "client/session/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::client {
namespace {

uint32_t PartsOf(const wire::Reply& reply) {
  return reply.has_granted() ? std::max(1u, reply.granted().parts()) : 1;
}
uint32_t PartOf(const wire::Reply& reply) {
  return reply.has_granted() ? reply.granted().part() : 0;
}

constexpr absl::Duration kBetweenGreetings = absl::Milliseconds(20);

absl::Status FaultOf(const wire::Error& error) {
  // A code that this Abseil does not know must still become an error.
  const auto code = error.code() >= 1 && error.code() <= 16
                        ? static_cast<absl::StatusCode>(error.code())
                        : absl::StatusCode::kUnknown;
  return FromDaemon(absl::Status(code, error.message()), error.shortage());
}

}  // namespace

absl::Status FromDaemon(const absl::Status& fault,
                        const std::string& shortage) {
  const absl::Status marked =
      Mark(fault, ShortageNamed(shortage).value_or(Shortage::kNone));
  // Other resources than memory ran out in the daemon's process.
  const bool of_process =
      ShortageOf(marked) != Shortage::kNone && !IsOutOfMemory(marked);
  return of_process ? Annotate(marked, "in sluiced") : marked;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(
    const std::string& socket, EventHandler on_event, GoneHandler on_gone) {
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, wire::Connect(socket));
  return std::unique_ptr<Connection>(
      new Connection(std::move(fd), std::move(on_event), std::move(on_gone)));
}

absl::StatusOr<Connection::Greeted> Connection::Greet(
    const std::string& socket, const wire::Request& hello,
    const std::function<std::vector<UniqueFd>()>& fds, EventHandler on_event,
    GoneHandler on_gone, absl::Duration timeout) {
  const MonotonicClock clock;
  const absl::Time deadline = clock.Now() + kGreeting;
  absl::Status before;
  for (;; absl::SleepFor(kBetweenGreetings)) {
    auto connection = Open(socket, on_event, on_gone);
    // The error of a Hello that was lost explains more than "no daemon
    // listens".
    if (!connection.ok()) return before.ok() ? connection.status() : before;
    auto answer = (*connection)->Call(hello, fds(), timeout);
    if (answer.ok()) return Greeted{*std::move(connection), *std::move(answer)};
    if (!(*connection)->IsUnheard() || clock.Now() >= deadline) {
      return answer.status();
    }
    before = answer.status();
  }
}

bool Connection::IsUnheard() {
  const MutexLock lock(mutex_);
  return gone_ && generation_ == 0 && refused_.ok();
}

Connection::Connection(UniqueFd socket, EventHandler on_event,
                       GoneHandler on_gone)
    : socket_(std::move(socket)),
      on_event_(std::move(on_event)),
      on_gone_(std::move(on_gone)),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "sluice-session");
}

Connection::~Connection() { Close(); }

void Connection::Close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  // Wakes the receiving thread, and ends the session even if a forked child
  // still holds the socket.
  shutdown(socket_.get(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
}

absl::Status Connection::Gone() const {
  if (!refused_.ok()) return refused_;
  return Mark(
      absl::UnavailableError(fmt::format(
          "{}: what is mapped stays and copies run on, but nothing new can be "
          "leased or planned; start the daemon and open a session again",
          gone_reason_)),
      gone_shortage_);
}

absl::Status Connection::TrySend(const wire::Packet& packet,
                                 std::span<const int> fds) {
  const MutexLock lock(send_mutex_);
  return wire::Send(socket_.get(), packet, fds);
}

// Waits for room without send_mutex_, so that Post, which the receiving thread
// calls too, is not delayed.
absl::Status Connection::SendPacket(const wire::Packet& packet,
                                    std::span<const int> fds,
                                    absl::Time deadline) {
  const MonotonicClock clock;
  for (;;) {
    const absl::Status status = TrySend(packet, fds);
    if (!absl::IsResourceExhausted(status)) return status;
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          "sluiced does not read its session socket: is it stopped?");
    }
    pollfd writable = {socket_.get(), POLLOUT, 0};
    poll(&writable, 1, 10);
  }
}

// Polls for 500 us. Most answers arrive sooner, and sleeping and waking would
// take a good part of that time.
void Connection::AwaitBriefly(uint64_t id) {
  const auto give_up =
      std::chrono::steady_clock::now() + std::chrono::microseconds(500);
  while (!calls_.complete(id) && !gone_ &&
         std::chrono::steady_clock::now() < give_up) {
    mutex_.Unlock();
    sched_yield();
    mutex_.Lock();
  }
}

// Waits until `end`, but longer while progress comes once per `timeout`.
void Connection::AwaitAnswer(uint64_t id, absl::Time end,
                             absl::Duration timeout) {
  const MonotonicClock clock;
  for (absl::Time now = clock.Now(); now < end; now = clock.Now()) {
    const auto deadline = CondVar::Deadline(end - now);
    while (!calls_.complete(id) && !gone_ &&
           changed_.WaitUntil(mutex_, deadline)) {
    }
    if (calls_.complete(id) || gone_) return;
    end = std::max(end, calls_.progressed_at(id) + timeout);
  }
}

absl::StatusOr<std::vector<wire::Message>> Connection::Call(
    const wire::Request& request, std::vector<UniqueFd> fds,
    absl::Duration timeout) {
  const MonotonicClock clock;
  std::vector<int> sent_fds;
  for (const UniqueFd& fd : fds) sent_fds.push_back(fd.get());
  absl::StatusOr<wire::Packet> packet;
  {
    const MutexLock lock(mutex_);
    if (gone_) return Gone();
    packet = calls_.Add(request, std::move(fds), PendingCalls::Waits::kCaller);
  }
  if (!packet.ok()) return packet.status();
  const uint64_t id = packet->id();
  // One deadline covers sending and the answer.
  const absl::Time end = clock.Now() + timeout;
  const absl::Status sent = SendPacket(*packet, sent_fds, end);
  MutexLock lock(mutex_);
  // If the daemon has closed the session, its reason may still be unread.
  if (sent.ok() || absl::IsUnavailable(sent)) {
    AwaitBriefly(id);
    AwaitAnswer(id, end, timeout);
  }
  if (calls_.complete(id)) {
    auto parts = calls_.Take(id);
    const wire::Reply& reply = parts.front().packet.reply();
    if (reply.has_error()) return FaultOf(reply.error());
    return parts;
  }
  if (gone_) return Gone();
  if (!sent.ok()) {
    calls_.Drop(id);
    return sent;
  }
  calls_.Abandon(id);
  if (request.lease().wait_ms() > 0) {
    lock.Unlock();
    GiveUp(id);
  }
  return absl::DeadlineExceededError(fmt::format(
      "sluiced did not answer within {}: is it stopped?", FormatSpan(timeout)));
}

absl::Status Connection::Post(const wire::Request& request) {
  absl::StatusOr<wire::Packet> packet;
  {
    const MutexLock lock(mutex_);
    if (gone_) return Gone();
    packet = calls_.Add(request, {}, PendingCalls::Waits::kNobody);
  }
  if (!packet.ok()) return packet.status();
  const absl::Status sent = TrySend(*packet, {});
  if (sent.ok()) return sent;
  const MutexLock lock(mutex_);
  calls_.Drop(packet->id());
  return sent;
}

void Connection::GiveUp(uint64_t id) {
  wire::Request request;
  request.mutable_give_up()->set_request_id(id);
  Post(request).IgnoreError();
}

bool Connection::Awaits(wire::Request::BodyCase kind) {
  const MutexLock lock(mutex_);
  return calls_.Awaits(kind);
}

void Connection::ReturnLease(uint64_t lease) {
  wire::Request request;
  request.mutable_free()->set_lease_id(lease);
  Post(request).IgnoreError();
}

void Connection::OnReply(wire::Message message) {
  MutexLock lock(mutex_);
  if (message.packet.id() == 0 && message.packet.reply().has_error()) {
    refused_ = FaultOf(message.packet.reply().error());
    return;
  }
  const uint64_t id = message.packet.id();
  const std::optional<uint64_t> lost = calls_.Answer(std::move(message));
  if (calls_.complete(id)) changed_.NotifyAll();
  lock.Unlock();
  if (lost) ReturnLease(*lost);
}

void Connection::OnGeneration(const wire::Packet& packet) {
  const MutexLock lock(mutex_);
  const uint64_t generation = packet.generation();
  // Also set if the daemon that received the Hello died before it answered.
  const bool taken_over = packet.event().has_taken_over();
  if (generation != 0 && generation != generation_) {
    if (generation_ != 0 || taken_over) calls_.Restart();
    generation_ = generation;
  }
  ResendLocked();
}

// Does not block: if the socket is full, the daemon still has requests to
// answer, and each answer calls this function again.
void Connection::ResendLocked() {
  calls_.SendUnsent([&](const wire::Packet& packet, std::span<const int> fds) {
    return TrySend(packet, fds);
  });
}

void Connection::Disconnect(const std::string& reason, Shortage shortage) {
  bool told;
  {
    const MutexLock lock(mutex_);
    gone_ = true;
    gone_reason_ = reason;
    gone_shortage_ = shortage;
    // Not reported if this side closed the session, or none was open yet.
    told = closing_ || generation_ == 0;
  }
  changed_.NotifyAll();
  if (!told) on_gone_(reason);
}

void Connection::OnClosed(const std::string& said) {
  if (!said.empty()) return Disconnect(said);
  Disconnect(kept_ ? "sluiced was stopped on this node, which ends its sessions"
                   : "sluiced has closed the session");
}

void Connection::Run() {
  std::string stopped;
  for (;;) {
    auto received = wire::Receive(socket_.get());
    if (!received.ok()) {
      return Disconnect(fmt::format("the session with sluiced broke: {}",
                                    std::string(received.status().message())),
                        ShortageOf(received.status()));
    }
    if (!received->has_value()) {
      return OnClosed(stopped);
    }
    wire::Message message = **std::move(received);
    OnGeneration(message.packet);
    if (message.packet.has_reply()) {
      OnReply(std::move(message));
    } else if (message.packet.event().has_lease_progress()) {
      const MutexLock lock(mutex_);
      calls_.Progressed(message.packet.event().lease_progress().request_id(),
                        MonotonicClock().Now());
    } else if (message.packet.has_event()) {
      if (message.packet.event().has_shutting_down()) {
        stopped = message.packet.event().shutting_down().reason();
      }
      on_event_(std::move(message));
    }
    // Other bodies, from a newer daemon, are ignored.
  }
}

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
