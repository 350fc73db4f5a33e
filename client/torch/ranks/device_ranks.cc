#include "client/torch/ranks/device_ranks.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "client/torch/exceptions.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// Opens the module, which stays for the process's life.
absl::StatusOr<decltype(&sluice_connect_nccl)> OpenNcclModule() {
  void* const module = dlopen("libsluice_torch_nccl.so", RTLD_NOW | RTLD_LOCAL);
  void* const entry =
      module != nullptr ? dlsym(module, "sluice_connect_nccl") : nullptr;
  if (entry != nullptr) {
    return reinterpret_cast<decltype(&sluice_connect_nccl)>(entry);
  }
  return absl::UnavailableError(fmt::format(
      "Sluice's module for ranks on GPUs cannot be loaded: {}; a build has it "
      "beside the program, in ../lib, where NCCL's headers were, and no "
      "package has it yet (run one rank without it)",
      dlerror()));
}

// Joins the c10d store of `host`, through which the ranks have met.
c10::intrusive_ptr<c10d::Store> JoinStore(const Collectives::Options& options) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(options.master_port);
  store.numWorkers = options.world_size;
  store.waitWorkers = false;
  // Limits how long the first operation waits at the store for a late rank.
  store.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000));
  return c10::make_intrusive<c10d::TCPStore>(options.master_addr, store);
}

}  // namespace

void DisableNcclWatchdog() {
  for (const char* const name :
       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) {
    setenv(name, "0", /*overwrite=*/0);
  }
}

absl::StatusOr<std::unique_ptr<Collectives>> ConnectDevice(
    const Collectives::Options& options, Collectives* host) {
  if (options.device.is_cpu()) return nullptr;
  SLUICE_ASSIGN_OR_RETURN(const auto connect, OpenNcclModule());
  absl::StatusOr<std::unique_ptr<Collectives>> connected;
  const absl::Status joined = CatchStatus("NCCL's meeting", [&] {
    connect(options, JoinStore(options), host, connected);
    return absl::OkStatus();
  });
  SLUICE_RETURN_IF_ERROR(joined);
  return connected;
}

}  // namespace sluice::runtime
