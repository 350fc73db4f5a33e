#include "client/session/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include <chrono>

#include "absl/time/clock.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::client {
namespace {

std::vector<int> NumbersOf(const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  return numbers;
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
  // Memory belongs to the node, every other resource to the daemon's process.
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

Connection::Connection(UniqueFd socket, EventHandler on_event,
                       GoneHandler on_gone)
    : socket_(std::move(socket)),
      on_event_(std::move(on_event)),
      on_gone_(std::move(on_gone)),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "sluice-session");
}

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

// Waits for room in the socket without holding send_mutex_, so that Post is not
// delayed on the receiving thread.
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

// Polls for at most 500 us. Most answers arrive sooner, so that sleeping and
// waking would take a good part of the time until the answer.
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

// Waits for the answer until `end`, or `timeout` after the last progress.
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

absl::StatusOr<wire::Packet> Connection::Add(const wire::Request& request,
                                             std::vector<UniqueFd> fds,
                                             PendingCalls::Waits waits) {
  const MutexLock lock(mutex_);
  if (gone_) return Gone();
  return calls_.Add(request, std::move(fds), waits);
}

absl::StatusOr<std::vector<wire::Message>> Connection::Call(
    const wire::Request& request, std::vector<UniqueFd> fds,
    absl::Duration timeout) {
  const std::vector<int> sent_fds = NumbersOf(fds);
  SLUICE_ASSIGN_OR_RETURN(
      const wire::Packet packet,
      Add(request, std::move(fds), PendingCalls::Waits::kCaller));
  const uint64_t id = packet.id();
  const absl::Time end = MonotonicClock().Now() + timeout;
  const absl::Status sent = SendPacket(packet, sent_fds, end);
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
    // Removes the lease from the daemon's queue.
    wire::Request give_up;
    give_up.mutable_give_up()->set_request_id(id);
    Post(give_up).IgnoreError();
  }
  return absl::DeadlineExceededError(fmt::format(
      "sluiced did not answer within {}: is it stopped?", FormatSpan(timeout)));
}

absl::Status Connection::Post(const wire::Request& request) {
  SLUICE_ASSIGN_OR_RETURN(const wire::Packet packet,
                          Add(request, {}, PendingCalls::Waits::kNobody));
  const absl::Status sent = TrySend(packet, {});
  if (sent.ok()) return sent;
  const MutexLock lock(mutex_);
  calls_.Drop(packet.id());
  return sent;
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
  if (!lost) return;
  wire::Request request;
  request.mutable_free()->set_lease_id(*lost);
  Post(request).IgnoreError();
}

void Connection::OnGeneration(const wire::Packet& packet) {
  const MutexLock lock(mutex_);
  const uint64_t generation = packet.generation();
  // The first packet is TakenOver if a daemon died before it answered Hello.
  const bool taken_over = packet.event().has_taken_over();
  if (generation != 0 && generation != generation_) {
    if (generation_ != 0 || taken_over) calls_.Restart();
    generation_ = generation;
  }
  // Does not block: if the socket is full, the daemon still has requests to
  // answer, and each answer calls this function again.
  calls_.SendUnsent([&](const wire::Packet& unsent, std::span<const int> fds) {
    return TrySend(unsent, fds);
  });
}

void Connection::Disconnect(const std::string& reason, Shortage shortage) {
  bool told;
  {
    const MutexLock lock(mutex_);
    gone_ = true;
    gone_reason_ = reason;
    gone_shortage_ = shortage;
    // on_gone_ is only called for an open session that this side did not close.
    told = closing_ || generation_ == 0;
  }
  changed_.NotifyAll();
  if (!told) on_gone_(reason);
}

void Connection::Run() {
  std::string stopped;  // the daemon's reason, if it announced its end
  for (;;) {
    auto received = wire::Receive(socket_.get());
    if (!received.ok()) {
      return Disconnect(fmt::format("the session with sluiced broke: {}",
                                    std::string(received.status().message())),
                        ShortageOf(received.status()));
    }
    if (!received->has_value()) {
      return Disconnect(
          !stopped.empty() ? stopped
          : kept_ ? "sluiced was stopped on this node, which ends its sessions"
                  : "sluiced has closed the session");
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

bool PendingCalls::Call::IsWhole() const {
  if (parts.empty()) return false;
  // Only grants have several parts.
  const wire::Reply& reply = parts.begin()->second.packet.reply();
  return parts.size() >= std::max(1u, reply.granted().parts());
}

absl::StatusOr<wire::Packet> PendingCalls::Add(const wire::Request& request,
                                               std::vector<UniqueFd> fds,
                                               Waits waits) {
  const auto is_posted = [](const auto& each) {
    return each.second.waits == Waits::kNobody;
  };
  const auto posted = std::ranges::count_if(calls_, is_posted);
  if (waits == Waits::kNobody && posted >= ptrdiff_t{kMostPosted}) {
    return absl::ResourceExhaustedError(fmt::format(
        "sluiced has left {} requests unanswered: is it stopped?", posted));
  }
  const auto is_report = [](const auto& each) {
    return each.second.packet.request().has_step_report();
  };
  if (request.has_step_report() &&
      std::ranges::count_if(calls_, is_report) >= ptrdiff_t{kMostReports}) {
    calls_.erase(std::ranges::find_if(calls_, is_report));
  }
  wire::Packet packet;
  packet.set_id(next_id_++);
  *packet.mutable_request() = request;
  const uint64_t oldest = calls_.empty() ? packet.id() : calls_.begin()->first;
  packet.mutable_request()->set_answered_up_to(oldest - 1);
  calls_[packet.id()] = {
      .packet = packet, .fds = std::move(fds), .waits = waits};
  return packet;
}

std::optional<uint64_t> PendingCalls::Answer(wire::Message message) {
  const auto found = calls_.find(message.packet.id());
  if (found == calls_.end()) return std::nullopt;
  Call& call = found->second;
  call.unsent = false;
  const uint32_t part = message.packet.reply().granted().part();
  call.parts[part] = std::move(message);
  if (call.waits == Waits::kCaller || !call.IsWhole()) return std::nullopt;
  const wire::Reply reply = call.parts.begin()->second.packet.reply();
  calls_.erase(found);
  if (!reply.has_granted()) return std::nullopt;
  return reply.granted().lease_id();
}

void PendingCalls::SendUnsent(Send send) {
  for (auto& [id, call] : calls_) {
    if (!call.unsent) continue;
    const auto sent = send(call.packet, NumbersOf(call.fds));
    if (absl::IsResourceExhausted(sent)) return;
    call.unsent = false;
  }
}

}  // namespace sluice::client
