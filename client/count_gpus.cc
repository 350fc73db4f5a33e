#include <cstdint>

#include "client/connection.h"
#include "client/session.h"
#include "proto/base/status.h"

namespace sluice::client {

absl::StatusOr<int64_t> CountGpus(const std::string& socket) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto connection,
      Connection::Open(
          socket.empty() ? DefaultSocket() : socket, [](wire::Message) {},
          [](const std::string&) {}));
  wire::Request request;
  wire::Hello* hello = request.mutable_hello();
  hello->set_protocol(wire::kProtocolVersion);
  hello->set_job("observer");
  hello->set_observer(true);
  SLUICE_ASSIGN_OR_RETURN(const auto reply, connection->Call(request));
  return reply[0].packet.reply().welcome().gpus_size();
}

}  // namespace sluice::client
