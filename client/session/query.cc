#include <fmt/format.h>

#include <cstdint>

#include "client/session/connection.h"
#include "client/session/session.h"
#include "client/session/welcome.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/wire.h"

namespace sluice::client {
namespace {

// Short, because the daemon answers an observer within milliseconds.
constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr int kRepeats = 3;

std::string Resolved(const std::string& socket) {
  return socket.empty() ? DefaultSocket() : socket;
}

// Returns `reply`, but states the socket's path if no reply came in time.
template <typename Reply>
Reply NameSocket(Reply reply, const std::string& socket) {
  if (!absl::IsDeadlineExceeded(reply.status())) return reply;
  return absl::DeadlineExceededError(
      fmt::format("sluiced at {} does not answer ({}): is it stopped?",
                  Resolved(socket), FormatSpan(kPatience)));
}

absl::StatusOr<Connection::Greeted> Observe(const std::string& socket) {
  wire::Request request;
  wire::Hello* hello = request.mutable_hello();
  hello->set_protocol(wire::kProtocols.newest);
  hello->set_oldest_protocol(wire::kProtocols.oldest);
  hello->set_job("observer");
  hello->set_observer(true);
  return NameSocket(
      Connection::Greet(
          Resolved(socket), request, [] { return std::vector<UniqueFd>(); },
          [](wire::Message) {}, [](const std::string&) {}, kPatience),
      socket);
}

absl::StatusOr<NodeStatus> QueryOnce(const std::string& socket,
                                     const std::string& plan_id) {
  wire::Request request;
  request.mutable_query()->set_plan_id(plan_id);
  // A name that is not UTF-8 would end the session without an answer.
  SLUICE_RETURN_IF_ERROR(wire::CheckFields(request));
  SLUICE_ASSIGN_OR_RETURN(const auto observer, Observe(socket));
  SLUICE_ASSIGN_OR_RETURN(
      const auto reply,
      NameSocket(observer.connection->Call(request, {}, kPatience), socket));
  const wire::Message& message = reply[0];
  NodeStatus status;
  status.json = message.packet.reply().snapshot().json();
  size_t next = 0;
  if (status.json.empty()) {  // too long for a packet
    if (message.fds.empty()) {
      return absl::InternalError("sluiced answered without a snapshot");
    }
    SLUICE_ASSIGN_OR_RETURN(status.json, wire::FromMemfd(message.fds[next++]));
  }
  if (!plan_id.empty()) {
    if (next >= message.fds.size()) {
      return absl::InternalError("sluiced answered without the plan");
    }
    SLUICE_ASSIGN_OR_RETURN(status.plan, ReadPlan(message.fds[next]));
  }
  return status;
}

}  // namespace

absl::StatusOr<std::vector<GpuState>> ListGpus(const std::string& socket) {
  SLUICE_ASSIGN_OR_RETURN(const auto observer, Observe(socket));
  std::vector<GpuState> gpus;
  for (const wire::Gpu& gpu :
       observer.answer[0].packet.reply().welcome().gpus()) {
    gpus.push_back(
        {.index = DeviceIndex(gpu.index()),
         .uuid = gpu.uuid(),
         .numa = NumaIndex(gpu.numa()),
         .total = LeasableOf(gpu.pool()),
         .leased = Bytes(static_cast<int64_t>(gpu.pool().leased_bytes()))});
  }
  return gpus;
}

bool DaemonListens(const std::string& socket) {
  return wire::Connect(Resolved(socket)).ok();
}

// Asks again if the daemon dies, which ends an observer's session.
absl::StatusOr<NodeStatus> QueryNode(const std::string& socket,
                                     const std::string& plan_id) {
  for (int again = 0;; ++again) {
    auto status = QueryOnce(socket, plan_id);
    if (again == kRepeats || !absl::IsUnavailable(status.status())) {
      return status;
    }
  }
}

}  // namespace sluice::client
