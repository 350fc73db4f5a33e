#include "daemon/service/handover.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "daemon/service/log/log.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr const char* kState = "state";

}  // namespace

std::string Handover::NameOf(ExtentId extent) {
  return fmt::format("e{}", extent.value());
}
std::string Handover::SocketOf(SessionId session) {
  return fmt::format("s{}", session.value());
}
std::string Handover::ProcessOf(SessionId session) {
  return fmt::format("p{}", session.value());
}
std::string Handover::UsePageOf(SessionId session) {
  return fmt::format("u{}", session.value());
}

absl::StatusOr<std::unique_ptr<Handover>> Handover::Start(Starter starter,
                                                          Post post) {
  auto handover = std::unique_ptr<Handover>(new Handover(post));
  DescriptorStore::Options options;
  options.notify_socket = starter.notify_socket;
  options.capacity = StoreCapacity(starter, kStoreSize);
  for (const auto& [name, fd] : starter.stored) options.stored.push_back(name);
  options.post = std::move(post);
  SLUICE_ASSIGN_OR_RETURN(handover->store_,
                          DescriptorStore::Start(std::move(options)));
  handover->left_ = std::move(starter.stored);
  return handover;
}

absl::StatusOr<std::optional<CoreState>> Handover::ReadState(
    const CoreState& fresh) {
  state_fd_ = Take(kState);
  if (!state_fd_) return std::nullopt;
  SLUICE_ASSIGN_OR_RETURN(state_, StateFile::Open(state_fd_.get()));
  return ReadCore(state_->TakeContents(), fresh);
}

UniqueFd Handover::Take(const std::string& name) {
  auto left = left_.extract(name);
  return left.empty() ? UniqueFd() : std::move(left.mapped());
}

void Handover::DropRest() {
  for (const auto& [name, fd] : left_) store_->Remove(name);
  left_.clear();
}

void Handover::DropAll() {
  store_->RemoveAll();
  left_.clear();
  state_.reset();
}

absl::Status Handover::MakeState() {
  state_fd_ = UniqueFd(memfd_create("sluice-state", MFD_CLOEXEC));
  if (!state_fd_) return ErrnoStatus(errno, "make memory for the state");
  SLUICE_ASSIGN_OR_RETURN(
      state_, StateFile::Create(state_fd_.get(), StateFile::Sizes()));
  Keep(kState, state_fd_.get());
  return absl::OkStatus();
}

void Handover::Begin(Core& core) {
  if (!store_->keeps()) return;
  absl::Status begun;
  if (state_ == nullptr) begun = MakeState();
  if (begun.ok()) begun = state_->Checkpoint(rows_.Everything(core));
  begun_ = true;
  if (!begun.ok()) GiveUp(begun);
}

void Handover::Save(Core& core) {
  if (!begun_) return;
  if (given_up_) {
    begun_ = false;
    return core.TouchAll();  // nobody asks any more what changed
  }
  const std::string record = rows_.Changes(core);
  if (record.empty()) return;
  absl::Status saved = state_->Append(record);
  if (absl::IsResourceExhausted(saved)) {
    saved = state_->Checkpoint(rows_.Everything(core));
  }
  if (!saved.ok()) GiveUp(saved);
}

void Handover::GiveUp(const absl::Status& why) {
  WriteLog(LogLevel::kError,
           fmt::format("what this daemon knows is not saved any more, so the "
                       "next one begins anew: {}",
                       std::string(why.message())));
  given_up_ = true;
  state_.reset();
  store_->Remove(kState);
}

void Handover::Keep(const std::string& name, int fd) {
  if (!store_->keeps()) return;
  absl::Status kept = store_->Put(name, fd);
  if (kept.ok() || absl::IsAlreadyExists(kept)) return;
  post_([this, kept = std::move(kept)] {
    if (!given_up_) GiveUp(kept);
  });
}

void Handover::Drop(const std::string& name) {
  if (store_->keeps()) store_->Remove(name);
}

void Handover::WhenKept(std::function<void()> then) {
  if (!store_->keeps()) return post_(std::move(then));
  store_->Flush([this, then = std::move(then)](const absl::Status& kept) {
    if (!kept.ok() && !given_up_) GiveUp(kept);
    then();
  });
}

void Handover::LeaveNothing(std::function<void()> then) {
  begun_ = false;
  if (!store_->keeps()) return then();
  store_->RemoveAll();
  WhenKept(std::move(then));
}

}  // namespace sluice::daemon
