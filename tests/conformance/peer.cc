#include "tests/conformance/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "proto/base/status.h"
#include "tests/conformance/fixture.h"

namespace sluice::device {

struct PeerRequest {
  enum class Action { kImport, kCreate, kFill, kCheck } action;
  Placement where = {};
  int64_t size = 0;
  int seed = 0;
};

namespace {

struct PeerReply {
  int code = 0;
  char message[500] = {};
};

absl::Status Send(int socket, const void* data, size_t size, int fd) {
  iovec part = {const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(size)) return absl::OkStatus();
  return ErrnoStatus(errno, "send to the peer");
}

absl::Status Receive(int socket, void* data, size_t size, UniqueFd* fd) {
  iovec part = {data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got != static_cast<ssize_t>(size)) {
    return absl::UnavailableError("the peer process ended");
  }
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int received;
    std::memcpy(&received, CMSG_DATA(header), sizeof(int));
    *fd = UniqueFd(received);
  }
  return absl::OkStatus();
}

sockaddr_un SocketAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

absl::Status Obey(Driver& driver, const PeerRequest& request,
                  const UniqueFd& received, std::unique_ptr<Mapped>& mapped,
                  UniqueFd& exported) {
  const Bytes size(request.size);
  switch (request.action) {
    case PeerRequest::Action::kImport: {
      SLUICE_ASSIGN_OR_RETURN(const Memory memory,
                              driver.Import(received, request.where, size));
      SLUICE_ASSIGN_OR_RETURN(
          mapped, Mapped::Map(&driver, memory, request.where, size));
      return absl::OkStatus();
    }
    case PeerRequest::Action::kCreate: {
      SLUICE_ASSIGN_OR_RETURN(mapped,
                              Mapped::Create(&driver, request.where, size));
      SLUICE_ASSIGN_OR_RETURN(exported, driver.Export(mapped->memory()));
      return absl::OkStatus();
    }
    case PeerRequest::Action::kFill:
      return mapped->Write(Pattern(mapped->size(), request.seed));
    case PeerRequest::Action::kCheck: {
      SLUICE_ASSIGN_OR_RETURN(const Content content, mapped->Read());
      if (content == Pattern(mapped->size(), request.seed)) {
        return absl::OkStatus();
      }
      return absl::DataLossError("the content is not what was expected");
    }
  }
  return absl::InternalError("unknown request");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> Peer::Start(
    const std::string& driver, const std::string& directory,
    const std::vector<std::string>& environment) {
  const std::string path = directory + "/peer";
  unlink(path.c_str());
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = SocketAddress(path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(listener.get(), 1) != 0) {
    return ErrnoStatus(errno, "listen for the peer");
  }
  auto child = testing::Child::Spawn(
      {"/proc/self/exe", "--peer", driver, directory, path}, environment);
  pollfd ready = {listener.get(), POLLIN, 0};
  if (poll(&ready, 1, 30'000) != 1) {
    return absl::DeadlineExceededError("the peer did not start");
  }
  UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return std::unique_ptr<Peer>(
      new Peer(std::move(child), std::move(connection)));
}

absl::Status Peer::Ask(PeerRequest request, int fd, UniqueFd* received) {
  SLUICE_RETURN_IF_ERROR(Send(socket_.get(), &request, sizeof(request), fd));
  PeerReply reply;
  UniqueFd unexpected;
  SLUICE_RETURN_IF_ERROR(Receive(socket_.get(), &reply, sizeof(reply),
                                 received != nullptr ? received : &unexpected));
  return absl::Status(static_cast<absl::StatusCode>(reply.code), reply.message);
}

absl::Status Peer::Import(const UniqueFd& fd, Placement where, Bytes size) {
  return Ask({.action = PeerRequest::Action::kImport,
              .where = where,
              .size = size.count()},
             fd.get());
}

absl::StatusOr<UniqueFd> Peer::Create(Placement where, Bytes size) {
  UniqueFd exported;
  SLUICE_RETURN_IF_ERROR(Ask({.action = PeerRequest::Action::kCreate,
                              .where = where,
                              .size = size.count()},
                             -1, &exported));
  return exported;
}

absl::Status Peer::Fill(int seed) {
  return Ask({.action = PeerRequest::Action::kFill, .seed = seed});
}

absl::Status Peer::Check(int seed) {
  return Ask({.action = PeerRequest::Action::kCheck, .seed = seed});
}

void Peer::Kill() {
  child_->Kill(SIGKILL);
  child_->Join();
}

int RunPeer(const std::string& driver_name, const std::string& directory,
            const std::string& socket_path) {
  const UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = SocketAddress(socket_path);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    return 1;
  }
  const auto driver = OpenDriver(driver_name, directory);
  // Declared after `driver`, so that it is destroyed first.
  std::unique_ptr<Mapped> mapped;
  PeerRequest request;
  UniqueFd received;
  while (Receive(connection.get(), &request, sizeof(request), &received).ok()) {
    UniqueFd exported;
    const absl::Status status =
        driver.ok() ? Obey(**driver, request, received, mapped, exported)
                    : driver.status();
    received.Reset();
    PeerReply reply;
    reply.code = static_cast<int>(status.code());
    std::snprintf(reply.message, sizeof(reply.message), "%s",
                  std::string(status.message()).c_str());
    if (!Send(connection.get(), &reply, sizeof(reply), exported.get()).ok()) {
      break;
    }
  }
  return 0;
}

}  // namespace sluice::device
