#include "tests/client/scripted_daemon.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/device/sim/sim.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::client {
namespace {

constexpr Bytes kExtent = KiB(64);

template <typename T>
std::pair<UniqueFd, T*> MakePage() {
  UniqueFd fd(memfd_create("page", MFD_CLOEXEC));
  SLUICE_CHECK(ftruncate(fd.get(), sizeof(T)) == 0);
  void* page =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  SLUICE_CHECK(page != MAP_FAILED);
  return {std::move(fd), static_cast<T*>(page)};
}

}  // namespace

ScriptedDaemon::ScriptedDaemon() {
  SLUICE_CHECK_OK(device::CreateSimNode(
      directory_.File("sim"), {.gpus = {{MiB(32), "pcie0", NumaIndex(0)}},
                               .links = {{"pcie0", 0, 0}},
                               .host_memory = MiB(64)}));
  driver_ = *device::OpenOwnedSimDriver(directory_.File("sim"));
  std::tie(limits_fd_, limits_) = MakePage<GrantLimits>();
  std::tie(use_fd_, use_) = MakePage<GrantUse>();
  listener_ = *wire::Listen(directory_.File("s"), 0600);
  thread_ = std::thread([this] { Run(); });
}

ScriptedDaemon::~ScriptedDaemon() {
  shutdown(listener_.get(), SHUT_RDWR);
  if (peer_) shutdown(peer_.get(), SHUT_RDWR);
  thread_.join();
  munmap(limits_, sizeof(GrantLimits));
  munmap(use_, sizeof(GrantUse));
}

void ScriptedDaemon::SetScript(Script script) {
  const MutexLock lock(mutex_);
  script_ = std::move(script);
}

SessionOptions ScriptedDaemon::options() const {
  return {.socket = directory_.File("s"), .job = "test"};
}

void ScriptedDaemon::Beat() {
  limits_->heartbeat_ns =
      static_cast<uint64_t>(absl::ToUnixNanos(MonotonicClock().Now()));
}

void ScriptedDaemon::Reply(uint64_t id, const wire::Reply& reply,
                           const std::vector<int>& fds) {
  wire::Packet packet;
  packet.set_id(id);
  packet.set_generation(generation_);
  *packet.mutable_reply() = reply;
  // The real daemon queues packets for a slow reader; this daemon retries.
  while (absl::IsResourceExhausted(wire::Send(peer_.get(), packet, fds))) {
    sched_yield();
  }
}

void ScriptedDaemon::ReplyError(uint64_t id, absl::StatusCode code,
                                const std::string& text) {
  wire::Reply reply;
  reply.mutable_error()->set_code(static_cast<int>(code));
  reply.mutable_error()->set_message(text);
  Reply(id, reply);
}

void ScriptedDaemon::SendEvent(const wire::Event& event,
                               const std::vector<int>& fds) {
  wire::Packet packet;
  packet.set_generation(generation_);
  *packet.mutable_event() = event;
  SLUICE_CHECK_OK(wire::Send(peer_.get(), packet, fds));
}

void ScriptedDaemon::Hang() { shutdown(peer_.get(), SHUT_RDWR); }

int ScriptedDaemon::count(wire::Request::BodyCase kind) const {
  const MutexLock lock(mutex_);
  return static_cast<int>(std::count(seen_.begin(), seen_.end(), kind));
}

void ScriptedDaemon::Run() {
  peer_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer_) return;
  for (;;) {
    auto message = wire::Receive(peer_.get());
    if (!message.ok() || !message->has_value()) return;
    SLUICE_CHECK_OK(wire::CheckRequest(**message));
    Script script;
    {
      const MutexLock lock(mutex_);
      seen_.push_back((*message)->packet.request().body_case());
      script = script_;
    }
    if (!script || !script(**message)) Answer(**message);
  }
}

void ScriptedDaemon::Answer(const wire::Message& message) {
  const uint64_t id = message.packet.id();
  wire::Reply reply;
  switch (message.packet.request().body_case()) {
    case wire::Request::kHello:
      return Welcome(id);
    case wire::Request::kLease:
      return Grant(message);
    case wire::Request::kFree:
      reply.mutable_freed();
      return Reply(id, reply);
    case wire::Request::kSubmitProfile:
      reply.mutable_submitted();
      return Reply(id, reply);
    case wire::Request::kStepReport:
      reply.mutable_noted();
      return Reply(id, reply);
    case wire::Request::kQuery:
      reply.mutable_snapshot()->set_json("{}");
      return Reply(id, reply);
    default:
      return;
  }
}

void ScriptedDaemon::Welcome(uint64_t id) {
  wire::Reply reply;
  wire::Welcome* welcome = reply.mutable_welcome();
  welcome->set_session_id(11);
  welcome->set_protocol(1);
  welcome->set_driver("sim");
  welcome->set_sim_directory(directory_.File("sim"));
  welcome->set_granularity(kExtent.size());
  welcome->set_grant_slot(0);
  wire::Gpu* gpu = welcome->add_gpus();
  gpu->set_uuid("GPU-sim-0");
  gpu->mutable_pool()->set_total_bytes(MiB(8).size());
  gpu->mutable_pool()->set_free_bytes(MiB(7).size());
  welcome->add_host_pools()->set_total_bytes(MiB(8).size());
  Reply(id, reply, {limits_fd_.get(), use_fd_.get()});
}

// Grants extents of kExtent, in as many packets as they need.
void ScriptedDaemon::Grant(const wire::Message& message) {
  const wire::Lease& lease = message.packet.request().lease();
  const device::Placement where =
      lease.kind() == wire::Lease::GPU
          ? device::Placement::Gpu(DeviceIndex(lease.ordinal()))
          : device::Placement::Host(NumaIndex(lease.ordinal()));
  const auto extents = static_cast<int>(lease.bytes() / kExtent.size());
  const int parts = (extents + wire::kMaxFds - 1) / wire::kMaxFds;
  for (int part = 0; part < parts; ++part) {
    wire::Reply reply;
    wire::Granted* granted = reply.mutable_granted();
    granted->set_lease_id(77);
    granted->set_part(static_cast<uint32_t>(part));
    granted->set_parts(static_cast<uint32_t>(parts));
    std::vector<UniqueFd> fds;
    std::vector<int> raw;
    const int end = std::min(extents, (part + 1) * wire::kMaxFds);
    for (int i = part * wire::kMaxFds; i < end; ++i) {
      memory_.push_back(*driver_->Create(where, kExtent));
      fds.push_back(*driver_->Export(memory_.back()));
      raw.push_back(fds.back().get());
      granted->add_extent_bytes(kExtent.size());
    }
    Reply(message.packet.id(), reply, raw);
  }
}

}  // namespace sluice::client
