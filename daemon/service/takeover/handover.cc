#include "daemon/service/takeover/handover.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/numbers.h"
#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

std::optional<uint64_t> NumberIn(const std::string& name, char kind) {
  uint64_t number = 0;
  const bool is_of_kind =
      name.starts_with(kind) && absl::SimpleAtoi(name.substr(1), &number);
  return is_of_kind ? std::optional(number) : std::nullopt;
}

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

// Checks that GPUs in use have the saved UUIDs. A GPU that cannot be used here
// has a number but no UUID.
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

// The capacity is 0 if the starter states none: it may listen without keeping
// anything ($NOTIFY_SOCKET of a unit without a store).
int64_t Handover::CapacityOf(const Starter& starter) {
  return starter.notify_socket.empty() ? 0 : StoreCapacity(starter, 0);
}

absl::StatusOr<std::unique_ptr<DescriptorStore>> Handover::OpenStore(
    const Starter& starter, Loop* loop) {
  DescriptorStore::Options options{.notify_socket = starter.notify_socket,
                                   .keeper = starter.keeper,
                                   .capacity = CapacityOf(starter)};
  options.post = [loop](auto task) { loop->Post(std::move(task)); };
  options.on_loss = [] {
    WriteLog(LogLevel::kError,
             "sluiced-keeper died, and with it what it kept for the next "
             "daemon: this daemon serves on, and its end ends every session. "
             "Start sluiced-keeper again when no job runs");
  };
  return DescriptorStore::Start(std::move(options), starter.stored);
}

absl::StatusOr<std::unique_ptr<Handover>> Handover::Start(
    Starter starter, Loop* loop, Closer* closer, StateFile::Sizes sizes) {
  auto handover = std::unique_ptr<Handover>(new Handover(loop, closer, sizes));
  SLUICE_ASSIGN_OR_RETURN(handover->store_, OpenStore(starter, loop));
  handover->left_ = std::move(starter.stored);
  uint64_t last = 0;
  for (const auto& [name, fd] : handover->left_) {
    for (const char kind : {kSocket, kProcess, kUsePage}) {
      last = std::max(last, NumberIn(name, kind).value_or(0));
    }
  }
  handover->last_session_left_ = SessionId(last);
  return handover;
}

absl::StatusOr<std::optional<CoreState>> Handover::ReadState(
    const Core& fresh) {
  state_fd_ = Take(kState);
  if (!state_fd_) return std::nullopt;
  SLUICE_ASSIGN_OR_RETURN(state_, OpenSaved(state_fd_.get()));
  if (state_ == nullptr) {
    // Removed now, because a new state will be stored under the same name.
    store_->Remove(kState);
    return std::nullopt;
  }
  return ReadSaved(state_->TakeContents(), fresh);
}

UniqueFd Handover::Take(const std::string& name) {
  auto left = left_.extract(name);
  return left.empty() ? UniqueFd() : std::move(left.mapped());
}

void Handover::DropRest() {
  for (auto& [name, fd] : std::exchange(left_, {})) {
    if (NumberIn(name, kSocket)) {
      DropSocket(name, std::move(fd));
    } else {
      Drop(name);
    }
  }
}

absl::Status Handover::MakeState() {
  state_fd_ = UniqueFd(memfd_create("sluice-state", MFD_CLOEXEC));
  if (!state_fd_) return ErrnoStatus(errno, "make memory for the state");
  SLUICE_ASSIGN_OR_RETURN(state_, StateFile::Create(state_fd_.get(), sizes_));
  return store_->Put(kState, state_fd_.get());
}

void Handover::Begin(Core& core, absl::Time now) {
  if (!store_->keeps()) return;
  begun_ = true;
  if (unstored_) return;  // Save repeats what the store lacks
  if (state_ == nullptr) {
    const absl::Status made = MakeState();
    if (!made.ok()) return Fail(made);
  }
  SaveAll(core, now);
}

void Handover::Save(Core& core, absl::Time now) {
  if (!begun_) return;
  if (!keeps()) return Stop(core);
  if (unstored_) return StoreAgain(core, now);
  if (try_again_at_) {
    if (now >= *try_again_at_) SaveAll(core, now);
    return;
  }
  const std::string record = rows_.Changes(core);
  if (record.empty()) return;
  const absl::Status saved = state_->Append(record);
  if (absl::IsResourceExhausted(saved)) return SaveAll(core, now);
  if (!saved.ok()) return Fail(saved);
}

void Handover::SaveAll(Core& core, absl::Time now) {
  const absl::Status saved = state_->Checkpoint(rows_.Everything(core));
  if (absl::IsResourceExhausted(saved)) {
    core.TouchAll();  // stops tracking changes until the state fits
    // The saved state is out of date, so no daemon may use it.
    if (!try_again_at_) {
      WriteLog(LogLevel::kError,
               fmt::format("this daemon's state is too large and is not saved: "
                           "until it fits, a next daemon starts without it: {}",
                           std::string(saved.message())));
      state_->Void();
    }
    try_again_at_ = now + kTryAgain;
    return;
  }
  if (!saved.ok()) return Fail(saved);
  if (!try_again_at_) return;
  try_again_at_.reset();
  WriteLog(LogLevel::kWarning,
           "this daemon's state fits again, and is saved from here on");
}

void Handover::Stop(Core& core) {
  core.TouchAll();  // stops tracking changes for good
  begun_ = false;
  refused_.clear();
  state_.reset();
  state_fd_.Reset();
}

void Handover::Fail(const absl::Status& why) {
  if (!keeps()) return;
  if (!unstored_) {
    WriteLog(
        LogLevel::kError,
        fmt::format("this daemon's state is not saved: until the descriptor "
                    "store has everything again, a next daemon starts "
                    "without it: {}",
                    std::string(why.message())));
  }
  unstored_ = true;
  // The next Save knows the time and tries again.
  try_again_at_ = absl::InfinitePast();
  DropState();
}

void Handover::DropState() {
  has_everything_ = false;
  if (state_ != nullptr) state_->Void();
  state_.reset();
  store_->Remove(kState);
}

// Puts again what the store refused (DescriptorStore itself sends again what it
// could not send). Makes a new state, because the old one is void, and the
// store may have lost it. When the store has everything, saves the core.
void Handover::StoreAgain(Core& core, absl::Time now) {
  if (has_everything_) {
    unstored_ = false;
    try_again_at_.reset();
    WriteLog(LogLevel::kWarning,
             "the descriptor store has everything again: this daemon's state "
             "is saved from here on");
    return SaveAll(core, now);
  }
  if (now < *try_again_at_) return;
  core.TouchAll();  // stops tracking changes until they are saved
  try_again_at_ = now + kStoreAgain;
  std::erase_if(refused_, [this](const auto& each) {
    const auto& [name, fd] = each;
    return fd && store_->Put(name, fd.get()).ok();
  });
  if (asking_ || !refused_.empty()) return;
  if (!MakeState().ok()) return DropState();
  asking_ = true;
  store_->Flush([this](const absl::Status& kept) {
    asking_ = false;
    has_everything_ = kept.ok() && state_ != nullptr;
    if (!has_everything_) return DropState();
    try_again_at_ = absl::InfinitePast();
  });
}

void Handover::Keep(const std::string& name, int fd) {
  if (!store_->keeps()) return;
  const absl::Status kept = store_->Put(name, fd);
  if (kept.ok()) return;
  CannotKeep(name, kept, UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
}

void Handover::CannotKeep(const std::string& name, const absl::Status& why,
                          UniqueFd fd) {
  auto own = std::make_shared<UniqueFd>(std::move(fd));
  loop_.Post([this, name, why, own] {
    refused_[name] = std::move(*own);
    Fail(why);
  });
}

void Handover::Drop(const std::string& name) {
  refused_.erase(name);
  if (store_->keeps()) store_->Remove(name);
}

void Handover::DropSocket(const std::string& name, UniqueFd socket) {
  // shutdown ends the connection even if a forked child has the peer's end.
  shutdown(socket.get(), SHUT_RDWR);
  Pass("socket-shut");
  Drop(name);
  Pass("socket-dropped");
  auto last = std::make_shared<UniqueFd>(std::move(socket));
  store_->Flush([this, last](const absl::Status&) {
    closer_.CloseSession(std::move(*last));
  });
}

void Handover::WhenKept(std::function<void()> then) {
  // While the store fails nothing is saved: there is no reason to wait.
  if (!keeps() || unstored_) return void(loop_.Post(std::move(then)));
  store_->Flush([this, then = std::move(then)](const absl::Status& kept) {
    if (!kept.ok()) Fail(kept);
    then();
  });
}

void Handover::LeaveNothing(std::function<void()> then, bool listeners) {
  begun_ = false;
  try_again_at_.reset();
  refused_.clear();
  if (!store_->keeps()) return then();
  store_->RemoveAll(listeners ? std::set<std::string>{kListener, kHttp}
                              : std::set<std::string>());
  if (unstored_) return then();
  WhenKept(std::move(then));
}

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
