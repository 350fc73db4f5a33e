#include "tests/fake_cuda/nccl/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "proto/base/mutex.h"
#include "tests/fake_cuda/nccl/options.h"

namespace sluice::fake_nccl {
namespace {

constexpr uint64_t kMagic = 0x4c43434e656b6146;  // "FakeNCCL"
constexpr int kBeingWritten = -1;
constexpr int64_t kLookMs = 20;

// The content of a unique id.
struct Address {
  uint64_t magic;
  uint64_t id;
  pid_t process;
  int fd;
};

// Boards that this process made and that still wait for ranks.
struct Made {
  Mutex mutex;
  std::map<uint64_t, UniqueFd> fds ABSL_GUARDED_BY(mutex);
};
Made& TheMade() {
  static auto* const made = new Made;
  return *made;
}

bool HasEnded(int pidfd) {
  pollfd ended = {pidfd, POLLIN, 0};
  return poll(&ended, 1, 0) == 1;
}

// Returns a random id that is not 0. Findings show only its last 16 bits.
uint64_t NewId() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

Shared* Map(int fd) {
  void* const at =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Shared*>(at);
}

// Returns null if the board no longer exists.
Shared* Open(const UniqueId& id) {
  Address address;
  std::memcpy(&address, &id, sizeof(address));
  if (address.magic != kMagic) return nullptr;
  const UniqueFd fd(
      open(fmt::format("/proc/{}/fd/{}", address.process, address.fd).c_str(),
           O_RDWR | O_CLOEXEC));
  struct stat status = {};
  if (!fd || fstat(fd.get(), &status) != 0 ||
      status.st_size != sizeof(Shared)) {
    return nullptr;
  }
  Shared* const shared = Map(fd.get());
  if (shared == nullptr) return nullptr;
  if (shared->magic == kMagic && shared->id == address.id) return shared;
  munmap(shared, sizeof(Shared));
  return nullptr;
}

}  // namespace

bool Board::Make(UniqueId& id) {
  UniqueFd fd(memfd_create("fake-nccl", MFD_CLOEXEC));
  if (!fd || ftruncate(fd.get(), sizeof(Shared)) != 0) return false;
  Shared* const shared = Map(fd.get());
  if (shared == nullptr) return false;
  shared->id = NewId();
  shared->magic = kMagic;
  const Address address{kMagic, shared->id, getpid(), fd.get()};
  munmap(shared, sizeof(Shared));
  id = {};
  std::memcpy(&id, &address, sizeof(address));
  Made& made = TheMade();
  const MutexLock lock(made.mutex);
  made.fds[address.id] = std::move(fd);
  return true;
}

std::shared_ptr<Board> Board::Join(const UniqueId& id, int ranks, int rank,
                                   int device, Result& failure,
                                   std::string& why) {
  failure = kRemoteError;
  std::shared_ptr<Board> board(new Board);
  board->shared_ = Open(id);
  if (board->shared_ == nullptr) {
    why = "the unique id is unknown, or the process that made it has ended";
    return nullptr;
  }
  int expected = 0;
  Shared& shared = *board->shared_;
  shared.ranks.compare_exchange_strong(expected, ranks);
  board->ranks_ = ranks;
  board->rank_ = rank;
  why = shared.ranks != ranks
            ? fmt::format(
                  "rank {} joins as one of {} ranks, another as one of {}",
                  rank, ranks, shared.ranks.load())
            : board->Enter(rank, device);
  if (!why.empty()) {
    failure = kInvalidUsage;
    board->Fail(failure, why);
    return nullptr;
  }
  board->AwaitOthers();
  // Waits while another rank writes its failure, but for about a second only:
  // that rank may have been killed.
  for (int i = 0; i < 1000 && shared.failure == kBeingWritten; ++i) {
    usleep(1000);
  }
  Made& made = TheMade();
  const MutexLock lock(made.mutex);
  made.fds.erase(shared.id);
  why = board->why();
  if (board->failure() == kSuccess) return board;
  if (board->failure() == kInvalidUsage) failure = kInvalidUsage;
  return nullptr;
}

Board::~Board() {
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
}

std::string Board::Enter(int rank, int device) {
  Member& member = shared_->members[rank];
  MemberState expected = MemberState::kAbsent;
  if (!member.state.compare_exchange_strong(expected, MemberState::kJoining)) {
    return fmt::format("rank {} joins twice", rank);
  }
  member.process = getpid();
  member.device = device;
  member.state = MemberState::kJoined;
  ++shared_->joined;
  Changed();
  return "";
}

void Board::AwaitOthers() {
  while (shared_->joined < ranks_ && failure() == kSuccess) {
    LookForDeaths();
    const uint32_t seen = Changes();
    if (shared_->joined < ranks_) WaitForChange(seen);
  }
  if (failure() == kSuccess && SameGpuTwice()) {
    Fail(kInvalidUsage, "two of the ranks are on one GPU");
  }
}

bool Board::SameGpuTwice() const {
  for (int i = 0; i < ranks_; ++i) {
    for (int j = 0; j < i; ++j) {
      if (shared_->members[i].device == shared_->members[j].device) return true;
    }
  }
  return false;
}

bool Board::Fail(Result result, const std::string& why) {
  int expected = 0;
  if (!shared_->failure.compare_exchange_strong(expected, kBeingWritten)) {
    return false;
  }
  const size_t size = std::min(why.size(), sizeof(shared_->why) - 1);
  std::memcpy(shared_->why, why.data(), size);
  shared_->why[size] = '\0';
  shared_->failure = result;
  Changed();
  return true;
}

Result Board::failure() const {
  const int failure = shared_->failure;
  return failure == kBeingWritten ? kInternalError
                                  : static_cast<Result>(failure);
}

std::string Board::why() const {
  return shared_->failure > 0 ? shared_->why : "";
}

bool Board::HasDied(int rank) {
  const Member& member = shared_->members[rank];
  if (member.process == getpid()) return false;
  const MutexLock lock(mutex_);
  UniqueFd& process = processes_[rank];
  if (!process) {
    process =
        UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, member.process, 0)));
  }
  return !process || HasEnded(process.get());
}

Fate Board::FateOf(int rank) {
  const Member& member = shared_->members[rank];
  const auto told = [&] {
    const MemberState state = member.state;
    return state == MemberState::kLeft      ? Fate::kLeft
           : state == MemberState::kAborted ? Fate::kAborted
                                            : Fate::kHere;
  };
  if (SilentDeaths()) return told() == Fate::kLeft ? told() : Fate::kHere;
  if (member.state != MemberState::kJoined || !HasDied(rank)) return told();
  // The rank may have left after `state` was read, before its process ended.
  return told() == Fate::kHere ? Fate::kDied : told();
}

void Board::LookForDeaths() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (FateOf(rank) != Fate::kDied) continue;
    Fail(kRemoteError, fmt::format("the process of rank {} has ended", rank));
  }
}

void Board::Changed() {
  ++shared_->changed;
  syscall(SYS_futex, &shared_->changed, FUTEX_WAKE, kMaxRanks * 64, nullptr,
          nullptr, 0);
}

void Board::WaitForChange(uint32_t seen) {
  const timespec some = {0, kLookMs * 1000000};
  syscall(SYS_futex, &shared_->changed, FUTEX_WAIT, seen, &some, nullptr, 0);
}

}  // namespace sluice::fake_nccl
