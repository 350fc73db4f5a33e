// The administrators' calls to a running daemon.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>

#include "proto/admin/admin.grpc.pb.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::testing {

inline std::unique_ptr<admin::Admin::Stub> AdminStub(
    const RunningDaemon& daemon) {
  return admin::Admin::NewStub(
      grpc::CreateChannel("unix:" + daemon.runtime_dir() + "/admin.sock",
                          grpc::InsecureChannelCredentials()));
}

}  // namespace sluice::testing
