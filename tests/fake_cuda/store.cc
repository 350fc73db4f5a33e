#include "tests/fake_cuda/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

namespace sluice::fake_cuda {
namespace {

constexpr Result kOutOfMemory = 2;
constexpr Result kNoDescriptor = 304;
constexpr const char* kNodeVariable = "SLUICE_FAKE_CUDA_NODE";

// What an exported descriptor says about its memory.
struct Label {
  size_t size;
  Location where;
};

std::string Prefix(Location where) {
  return fmt::format("memory-{}-{}-", where.type, where.id);
}

// Fills memory with non-zero bytes, as if a previous user had left them.
bool Soil(int fd, size_t size) {
  const std::vector<char> block(size_t{1} << 20, '\xff');
  for (size_t at = 0; at < size;) {
    const ssize_t wrote =
        pwrite(fd, block.data(), std::min(block.size(), size - at),
               static_cast<off_t>(at));
    if (wrote <= 0) return false;
    at += static_cast<size_t>(wrote);
  }
  return true;
}

uint64_t IdOf(int fd) {
  struct stat status = {};
  fstat(fd, &status);
  return status.st_ino;
}

// A file's name is PREFIX, its maker's pid, "-" and a number (Create).
bool MakerIsGone(const std::string& name, const std::string& prefix) {
  const int pid = std::atoi(name.c_str() + prefix.size());
  return kill(pid, 0) != 0 && errno == ESRCH;
}

struct Message {
  Label label = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {&label, sizeof(label)};
  msghdr header = {};
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
};

}  // namespace

void Store::Open(const std::string& folder, const std::string& nodes,
                 bool keep_dead) {
  keep_dead_ = keep_dead;
  const char* const inherited = std::getenv(kNodeVariable);
  folder_ = !folder.empty() ? folder : inherited != nullptr ? inherited : "";
  if (!folder_.empty()) return;
  std::string name = nodes + "/sluice-fake-cuda-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    std::perror("fake libcuda: no folder for the node");
    std::abort();
  }
  folder_ = name;
  made_ = true;
  setenv(kNodeVariable, name.c_str(), 1);
}

void Store::Close() {
  std::error_code ignored;
  if (made_) std::filesystem::remove_all(folder_, ignored);
}

UniqueFd Store::Lock() const {
  UniqueFd gate(
      open((folder_ + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  flock(gate.get(), LOCK_EX);
  return gate;
}

size_t Store::UsedLocked(Location where) {
  size_t used = 0;
  const std::string prefix = Prefix(where);
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const UniqueFd file(open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    if (!file) continue;
    struct stat status = {};
    if (keep_dead_ && MakerIsGone(entry.path().filename().string(), prefix) &&
        fstat(file.get(), &status) == 0) {
      used += static_cast<size_t>(status.st_size);
    } else if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      unlink(entry.path().c_str());
    } else if (fstat(file.get(), &status) == 0) {
      used += static_cast<size_t>(status.st_size);
    }
  }
  return used;
}

size_t Store::Used(Location where) {
  const UniqueFd gate = Lock();
  return UsedLocked(where);
}

Result Store::Create(Location where, size_t size, size_t limit, bool exportable,
                     bool dirty, AllocationPointer& made) {
  const UniqueFd gate = Lock();
  if (size > limit || UsedLocked(where) > limit - size) return kOutOfMemory;
  const std::string path = fmt::format("{}/{}{}-{}", folder_, Prefix(where),
                                       getpid(), made_files_++);
  UniqueFd file(
      open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  const auto fill = [&] {
    return dirty ? Soil(file.get(), size)
                 : ftruncate(file.get(), static_cast<off_t>(size)) == 0;
  };
  if (!file || flock(file.get(), LOCK_SH) != 0 || !fill()) {
    return kNoDescriptor;
  }
  const uint64_t id = IdOf(file.get());
  made = std::make_shared<Allocation>(
      Allocation{std::move(file), id, size, where, exportable});
  return device::cuda::kSuccess;
}

int Store::Export(const Allocation& allocation) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) return -1;
  const UniqueFd sender(ends[0]);
  Message message;
  message.label = {allocation.size, allocation.where};
  cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int file = allocation.file.get();
  std::memcpy(CMSG_DATA(control), &file, sizeof(file));
  if (sendmsg(sender.get(), &message.header, 0) == sizeof(Label)) {
    return ends[1];
  }
  close(ends[1]);
  return -1;
}

AllocationPointer Store::Import(int fd) {
  Message message;
  const ssize_t got =
      recvmsg(fd, &message.header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  if (got != sizeof(Label) || control == nullptr) return nullptr;
  int file = -1;
  std::memcpy(&file, CMSG_DATA(control), sizeof(file));
  const uint64_t id = IdOf(file);
  return std::make_shared<Allocation>(
      Allocation{UniqueFd(file), id, message.label.size, message.label.where,
                 /*exportable=*/true, /*imported=*/true});
}

}  // namespace sluice::fake_cuda
