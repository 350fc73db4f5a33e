#include "daemon/service/takeover/read_saved.h"

#include <fmt/format.h>

#include "absl/time/time.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/state/core_rows.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

absl::Status CheckPools(const CoreState& saved, const Core& fresh) {
  for (const auto& [id, pool] : saved.ledger.pools) {
    Bytes made, idle;
    for (const auto& [extent, each] : pool.extents) {
      made += each.size;
      if (each.state == Pool::State::kKept) idle += each.size;
    }
    const Bytes total = fresh.pool(id).total;
    if (made <= total) continue;
    return absl::FailedPreconditionError(fmt::format(
        "{} has {} here, and jobs hold {} of it{}: make the pool as large "
        "again ([pools] {}_bytes)",
        Name(id), FormatBytes(total), FormatBytes(made - idle),
        idle > Bytes(0) ? fmt::format(", {} are idle, for 10 minutes at most",
                                      FormatBytes(idle))
                        : "",
        id.kind == PoolKind::kGpu ? "gpu" : "host"));
  }
  return absl::OkStatus();
}

// Checks UUIDs. A GPU that cannot be used here has a number but no UUID.
absl::Status CheckGpus(const CoreState& saved, const NodeConfig& here) {
  for (const GpuConfig& gpu : here.gpus) {
    const PoolId id{PoolKind::kGpu, gpu.index.value()};
    const auto named = saved.gpus.find(id);
    if (named == saved.gpus.end() || gpu.uuid.empty() ||
        gpu.uuid == named->second) {
      continue;
    }
    bool used = !saved.ledger.pools.at(id).extents.empty();
    for (const auto& [session, each] : saved.sessions) {
      used |= each.is_rank() && each.hello.gpu == gpu.index;
    }
    if (!used) continue;
    return absl::FailedPreconditionError(fmt::format(
        "{} is {} here, and jobs use it as {}: start sluiced with that GPU in "
        "its place (nvidia-smi -L, CUDA_VISIBLE_DEVICES)",
        Name(id), gpu.uuid, named->second));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFile>> OpenSaved(int fd) {
  auto opened = StateFile::Open(fd);
  if (absl::IsNotFound(opened.status())) return nullptr;
  return opened;
}

absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh) {
  SLUICE_ASSIGN_OR_RETURN(CoreState saved, ReadCore(contents, fresh.Save()));
  SLUICE_RETURN_IF_ERROR(CheckPools(saved, fresh));
  SLUICE_RETURN_IF_ERROR(CheckGpus(saved, fresh.config()));
  for (const auto& [id, session] : saved.sessions) {
    const uint32_t speaks = session.hello.protocol;
    if (!session.is_rank() || (speaks >= wire::kProtocols.oldest &&
                               speaks <= wire::kProtocols.newest)) {
      continue;
    }
    return absl::UnimplementedError(fmt::format(
        "session {} speaks protocol {}, this daemon {} to {}", id.value(),
        speaks, wire::kProtocols.oldest, wire::kProtocols.newest));
  }
  return saved;
}

absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node) {
  const auto state = left.find(Handover::kState);
  if (state == left.end()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto file, OpenSaved(state->second.get()));
  if (file == nullptr) return absl::OkStatus();
  const Core fresh(node, absl::UnixEpoch());
  SLUICE_ASSIGN_OR_RETURN(const CoreState saved,
                          ReadSaved(file->TakeContents(), fresh));
  std::set<std::string> kept;
  for (const auto& [name, fd] : left) kept.insert(name);
  return CheckLeft(saved, kept);
}

absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept) {
  for (const auto& [pool, extents] : saved.ledger.pools) {
    for (const auto& [id, extent] : extents.extents) {
      if (extent.state == Pool::State::kMaking ||
          kept.contains(Handover::NameOf(id))) {
        continue;
      }
      return absl::FailedPreconditionError(
          fmt::format("extent {} of {} was not kept", id.value(), Name(pool)));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::daemon
