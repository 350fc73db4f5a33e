#include "kernels/device/sim/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/device/sim/ledger.h"
#include "kernels/device/sim/memory_name.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

constexpr char kCalls[] =
    "Devices Granularity Usage HeldOutside Create Export Import Keep Adopt "
    "Release Reserve FreeReservation Map Unmap SetAccess HostRegister "
    "HostUnregister CreateStream DestroyStream CreateEvent CreateTimedEvent "
    "ElapsedTime DestroyEvent RecordEvent StreamWaitEvent QueryEvent "
    "SynchronizeEvent SynchronizeStream CopyAsync Copy FillAsync LoadModule "
    "GetFunction Launch";

std::string StatePath(const std::string& directory) {
  return directory + "/node.state";
}

absl::StatusOr<Mapped<SharedState>> MapState(int fd, bool writable,
                                             const std::string& path) {
  const int may = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = mmap(nullptr, sizeof(SharedState), may, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return ErrnoStatus(errno, "map " + path);
  return Mapped<SharedState>(static_cast<SharedState*>(address));
}

bool Locks(int fd, int how) { return flock(fd, how | LOCK_NB) == 0; }

// Checks that no process uses a node at `path`. Locks the node if it exists.
absl::Status LockUnused(const std::string& path, UniqueFd& lock) {
  lock = UniqueFd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!lock) {
    return errno == ENOENT ? absl::OkStatus()
                           : ErrnoStatus(errno, "open " + path);
  }
  if (Locks(lock.get(), LOCK_EX)) return absl::OkStatus();
  // Processes that use a node hold a shared lock. If even a shared lock fails,
  // the holder has an exclusive lock, which does not mean use: any user may
  // lock a file that it may read, for as long as it likes.
  if (!Locks(lock.get(), LOCK_SH)) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "the simulated node {} is in use: end the processes that use it, or open "
      "it as it is",
      path));
}

struct OpenState {
  UniqueFd fd;
  bool writable = false;
};

// Opens `path` for writing if this process may write it, else for reading.
absl::StatusOr<OpenState> OpenFile(const std::string& path) {
  for (const bool writable : {true, false}) {
    const int mode = writable ? O_RDWR : O_RDONLY;
    UniqueFd fd(open(path.c_str(), mode | O_NOFOLLOW | O_CLOEXEC));
    if (fd) return OpenState{std::move(fd), writable};
    if (errno != EACCES && errno != EROFS) break;
  }
  return ErrnoStatus(errno, "open " + path);
}

// Opens and locks the state file. Repeats that if CreateSimNode replaces it.
absl::StatusOr<OpenState> OpenLocked(const std::string& directory) {
  const std::string path = StatePath(directory);
  if (access(path.c_str(), F_OK) != 0 &&
      (errno == ENOENT || errno == ENOTDIR)) {
    return absl::NotFoundError(fmt::format(
        "no simulated node in {}: start sluiced, or make one", directory));
  }
  // CreateSimNode holds its lock only for a moment, while it replaces the file.
  for (int tries = 0; tries < 500; ++tries) {
    SLUICE_ASSIGN_OR_RETURN(OpenState state, OpenFile(path));
    if (!Locks(state.fd.get(), LOCK_SH)) {
      usleep(10'000);
      continue;
    }
    struct stat opened, current;
    if (fstat(state.fd.get(), &opened) != 0)
      return ErrnoStatus(errno, "stat " + path);
    if (stat(path.c_str(), &current) == 0 && current.st_ino == opened.st_ino) {
      if (opened.st_size == sizeof(SharedState)) return state;
      return absl::FailedPreconditionError(fmt::format(
          "{} was made by another version of sluice: remove it", path));
    }
  }
  return absl::UnavailableError(fmt::format(
      "{} is locked by a process that does not use it (lslocks names it)",
      path));
}

class SimNodeImpl final : public SimNode {
 public:
  explicit SimNodeImpl(std::unique_ptr<NodeMapping> node)
      : node_(std::move(node)), ledger_(node_.get()) {}

  SimConfig config() const override { return node_->config(); }
  absl::StatusOr<MemoryUse> Usage(Placement where) override {
    const absl::Status placement = node_->CheckPlacement(where);
    if (absl::IsInvalidArgument(placement)) return placement;
    return ledger_.Usage(where);
  }

  absl::Status FailCall(std::string_view name, int nth) override {
    const std::vector<std::string> calls = absl::StrSplit(kCalls, ' ');
    if (std::ranges::find(calls, name) == calls.end()) {
      return BadNode(fmt::format(
          "there is no driver call '{}' to fail; known: {}", name, kCalls));
    }
    if (nth < 1) {
      return BadNode(fmt::format("call {} cannot fail: the next is 1", nth));
    }
    SLUICE_ASSIGN_OR_RETURN(SharedState* const state, node_->ForWriting());
    for (SharedFailure& failure : state->failures) {
      int64_t unused = 0;
      // -1 claims the entry until its name is written.
      if (!failure.remaining.compare_exchange_strong(unused, -1)) continue;
      std::memset(failure.call, 0, sizeof(failure.call));
      name.copy(failure.call, sizeof(failure.call) - 1);
      failure.remaining = nth;
      state->failures_armed++;
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        fmt::format("{} failures wait already", kSimMaxFailures));
  }

  absl::Status LoseGpu(DeviceIndex gpu) override {
    if (gpu.value() >= node_->config().gpus.size()) {
      return BadNode(fmt::format("there is no GPU {}", gpu.value()));
    }
    SLUICE_ASSIGN_OR_RETURN(SharedState* const state, node_->ForWriting());
    state->gpus[gpu.value()].lost = 1;
    return absl::OkStatus();
  }

  absl::Status SetLinkSpeed(std::string_view name, double h2d,
                            double d2h) override {
    SLUICE_RETURN_IF_ERROR(CheckLinkSpeed(name, h2d));
    SLUICE_RETURN_IF_ERROR(CheckLinkSpeed(name, d2h));
    SLUICE_ASSIGN_OR_RETURN(SharedState* const state, node_->ForWriting());
    const auto& links = node_->config().links;
    for (size_t i = 0; i < links.size(); ++i) {
      if (name != links[i].name) continue;
      state->links[i].bytes_per_second[0] = h2d;
      state->links[i].bytes_per_second[1] = d2h;
      return absl::OkStatus();
    }
    return BadNode(fmt::format("there is no link '{}'", name));
  }

 private:
  const std::unique_ptr<NodeMapping> node_;
  Ledger ledger_;
};

}  // namespace

std::string PlacementName(Placement where) {
  return fmt::format("{} {}",
                     where.kind == Placement::Kind::kGpu ? "GPU" : "NUMA node",
                     where.ordinal);
}

absl::Status CreateSimNode(const std::string& directory,
                           const SimConfig& config) {
  SLUICE_RETURN_IF_ERROR(CheckSimConfig(config));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), "make " + directory);
  UniqueFd lock;
  SLUICE_RETURN_IF_ERROR(LockUnused(StatePath(directory), lock));

  const std::string fresh = fmt::format("{}/node.new.{}", directory, getpid());
  // An earlier process with this pid may have died here and left the file.
  unlink(fresh.c_str());
  const absl::Status made = [&]() -> absl::Status {
    UniqueFd fd(open(fresh.c_str(),
                     O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd) return ErrnoStatus(errno, "make " + fresh);
    // With 0644, whatever the umask, ranks of any user that may enter the
    // directory can read the file. They cannot truncate it, which would raise
    // SIGBUS in other processes.
    fchmod(fd.get(), 0644);
    // Writing to a missing page on a full file system would raise SIGBUS.
    if (const int error = posix_fallocate(fd.get(), 0, sizeof(SharedState));
        error != 0) {
      return ErrnoStatus(
          error,
          fmt::format(
              "make {} of {}",
              FormatBytes(Bytes(static_cast<int64_t>(sizeof(SharedState)))),
              fresh));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto state,
                            MapState(fd.get(), /*writable=*/true, fresh));
    WriteConfig(config, *state);
    if (rename(fresh.c_str(), StatePath(directory).c_str()) != 0) {
      return ErrnoStatus(errno, "put the node in " + directory);
    }
    return absl::OkStatus();
  }();
  if (!made.ok()) unlink(fresh.c_str());
  return made;
}

absl::StatusOr<std::unique_ptr<NodeMapping>> NodeMapping::Open(
    const std::string& directory, Books books, const UniqueFd& clocks) {
  SLUICE_ASSIGN_OR_RETURN(OpenState opened, OpenLocked(directory));
  SLUICE_ASSIGN_OR_RETURN(
      Mapped<SharedState> mapped,
      MapState(opened.fd.get(), opened.writable, StatePath(directory)));
  const SharedState* const state = mapped.get();
  std::unique_ptr<NodeMapping> node(new NodeMapping(
      std::move(opened.fd), std::move(mapped), opened.writable, books));
  if (state->magic != kSimMagic || state->size != sizeof(SharedState)) {
    return absl::FailedPreconditionError(
        fmt::format("{} was made by another version of sluice: remove it",
                    StatePath(directory)));
  }
  SLUICE_ASSIGN_OR_RETURN(node->name_, NodeName(directory));
  if (clocks) {
    SLUICE_ASSIGN_OR_RETURN(node->clocks_, MapClocks(clocks));
  } else if (!opened.writable) {
    SLUICE_ASSIGN_OR_RETURN(node->clocks_, PrivateClocks());
  }
  node->config_ = ReadConfig(*state);
  if (const absl::Status sound = CheckSimConfig(node->config_); !sound.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("{} is damaged ({}): remove it", StatePath(directory),
                    std::string(sound.message())));
  }
  for (size_t i = 0; books == Books::kOwn && i < node->failures_.size(); ++i) {
    const SharedFailure& waits = state->failures[i];
    std::memcpy(node->failures_[i].call, waits.call, sizeof(waits.call));
    node->failures_[i].remaining = waits.remaining.load();
  }
  return node;
}

absl::StatusOr<SharedState*> NodeMapping::ForWriting() const {
  if (writable_) return state_.get();
  return absl::PermissionDeniedError(
      "only the owner of a simulated node changes it or makes its memory");
}

// Locks a new open file description, so that threads exclude each other as
// processes do. Closing the returned descriptor unlocks.
absl::StatusOr<UniqueFd> NodeMapping::LockMaking() const {
  if (books_ == Books::kOwn) return UniqueFd();
  SLUICE_RETURN_IF_ERROR(ForWriting().status());
  UniqueFd lock(open(fmt::format("/proc/self/fd/{}", fd_.get()).c_str(),
                     O_RDWR | O_CLOEXEC));
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (!lock || fcntl(lock.get(), F_OFD_SETLKW, &whole) != 0) {
    return ErrnoStatus(errno, "lock the simulated node");
  }
  return lock;
}

void NodeMapping::NoteMet(const SharedFailure& failure) const {
  if (books_ == Books::kOwn) {
    // Clears the failure in the state too, or it would occur again elsewhere.
    const auto at = static_cast<size_t>(&failure - failures_.data());
    if (!writable_ || state_->failures[at].remaining.exchange(0) == 0) return;
  }
  state_->failures_armed--;
}

absl::Status NodeMapping::Enter(const char* call) const {
  const bool own = books_ == Books::kOwn;
  // With shared books only the owner's processes can count failures down.
  if (!own && (!writable_ ||
               state_->failures_armed.load(std::memory_order_relaxed) == 0)) {
    return absl::OkStatus();
  }
  for (SharedFailure& failure :
       own ? std::span(failures_) : std::span(state_->failures)) {
    int64_t left = failure.remaining.load();
    if (left <= 0 || std::strncmp(failure.call, call, kSimNameLength) != 0) {
      continue;
    }
    while (left > 0 &&
           !failure.remaining.compare_exchange_weak(left, left - 1)) {
    }
    if (left != 1) continue;
    NoteMet(failure);
    return absl::ResourceExhaustedError(
        fmt::format("{}: failure injected into the simulated node", call));
  }
  return absl::OkStatus();
}

size_t NodeMapping::CountOf(Placement::Kind kind) const {
  return kind == Placement::Kind::kGpu
             ? config_.gpus.size()
             : static_cast<size_t>(config_.numa_nodes);
}

bool NodeMapping::Has(Placement where) const {
  return where.ordinal < CountOf(where.kind);
}

absl::Status NodeMapping::CheckPlacement(Placement where) const {
  if (!Has(where)) {
    return absl::InvalidArgumentError(
        fmt::format("there is no {}; the node has {}", PlacementName(where),
                    CountOf(where.kind)));
  }
  const bool gpu = where.kind == Placement::Kind::kGpu;
  if (gpu && books_ == Books::kShared && state_->gpus[where.ordinal].lost) {
    return absl::UnavailableError(
        fmt::format("GPU {} is lost: end the process", where.ordinal));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SimNode>> SimNode::Open(
    const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(auto node, NodeMapping::Open(directory));
  return std::make_unique<SimNodeImpl>(std::move(node));
}

}  // namespace sluice::device
