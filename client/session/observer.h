// A connection that only looks. Internal to client.
#pragma once

#include <memory>
#include <string>

#include "client/session/connection.h"

namespace sluice::client {

struct Observer {
  std::unique_ptr<Connection> connection;
  wire::Message welcome;
};

// `socket` empty: DefaultSocket().
absl::StatusOr<Observer> Observe(const std::string& socket);

}  // namespace sluice::client
