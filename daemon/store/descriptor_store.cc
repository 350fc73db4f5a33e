#include "daemon/store/descriptor_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/store/descriptor_name.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// A message has a line per field, so a text is one line.
std::string OneLine(std::string_view text, size_t most) {
  std::string line(text.substr(0, most));
  std::replace_if(
      line.begin(), line.end(),
      [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return line;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorStore>> DescriptorStore::Start(
    Options options, const std::map<std::string, UniqueFd>& stored) {
  auto store =
      std::unique_ptr<DescriptorStore>(new DescriptorStore(std::move(options)));
  SLUICE_RETURN_IF_ERROR(store->Open(stored));
  return store;
}

absl::Status DescriptorStore::Open(
    const std::map<std::string, UniqueFd>& stored) {
  const bool listens = !options_.notify_socket.empty();
  const bool kept = listens && options_.keeper && options_.capacity > 0;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, fd] : stored) {
      UniqueFd again;
      if (kept) {
        SLUICE_ASSIGN_OR_RETURN(again, fd.Duplicate());
      }
      kept_[name] =
          kept ? std::make_shared<const UniqueFd>(std::move(again)) : nullptr;
    }
  }
  if (!listens) return absl::OkStatus();
  if (kept) {
    SLUICE_ASSIGN_OR_RETURN(
        keeper_, KeeperProcess::Watch({*options_.keeper, options_.notify_socket,
                                       options_.capacity}));
  }
  SLUICE_ASSIGN_OR_RETURN(
      socket_, NotifySocket::Make(options_.notify_socket,
                                  kept ? NotifySocket::Answer::kByte
                                       : NotifySocket::Answer::kHangUp));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return ErrnoStatus(errno, "make an eventfd");
  thread_ = std::thread([this] { Work(); });
  pthread_setname_np(thread_.native_handle(), "fd-store");
  return absl::OkStatus();
}

DescriptorStore::~DescriptorStore() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  socket_->Cancel();
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

absl::Status DescriptorStore::Put(std::string_view name, int fd) {
  if (!IsDescriptorName(name)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' cannot name a stored descriptor: 1 to {} of a-z, 0-9 "
                    "and '-'",
                    name, kMaxDescriptorName));
  }
  if (!keeps()) return absl::OkStatus();
  const MutexLock lock(mutex_);
  if (kept_.contains(name)) {
    return absl::AlreadyExistsError(
        fmt::format("a descriptor '{}' is stored", name));
  }
  if (static_cast<int64_t>(kept_.size()) >= options_.capacity) {
    return absl::ResourceExhaustedError(
        fmt::format("the descriptor store is full: it holds {} of {} (raise "
                    "FileDescriptorStoreMax= and LimitNOFILE= of the unit, or "
                    "--max-descriptors of sluiced-keeper)",
                    kept_.size(), options_.capacity));
  }
  if (queue_.size() >= kMostQueued) {
    return absl::ResourceExhaustedError(
        fmt::format("the descriptor store does not take what is sent: {} wait",
                    queue_.size()));
  }
  UniqueFd kept(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!kept) return ErrnoStatus(errno, "duplicate a descriptor to store it");
  const auto shared = std::make_shared<const UniqueFd>(std::move(kept));
  kept_.emplace(name, keeper_ ? shared : nullptr);
  Push(PutOf(std::string(name), shared));
  return absl::OkStatus();
}

DescriptorStore::Item DescriptorStore::PutOf(const std::string& name,
                                             SharedFd fd) {
  return {.message = fmt::format("FDSTORE=1\nFDNAME={}\nFDPOLL=0", name),
          .fd = std::move(fd),
          .done = {},
          .changes_store = true};
}

void DescriptorStore::Remove(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(name);
  if (found == kept_.end()) return;
  kept_.erase(found);
  if (socket_ == nullptr) return;
  Push({.message = fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name),
        .fd = {},
        .done = {},
        .changes_store = true});
}

void DescriptorStore::RemoveAll(const std::set<std::string>& but) {
  std::vector<std::string> names;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, fd] : kept_) {
      if (!but.contains(name)) names.push_back(name);
    }
  }
  for (const std::string& name : names) Remove(name);
}

void DescriptorStore::Flush(Done done) {
  if (!keeps()) return Post(std::move(done), absl::OkStatus());
  const MutexLock lock(mutex_);
  Push({.message = {}, .fd = {}, .done = std::move(done)});
}

void DescriptorStore::Ready(std::string_view status) {
  Tell("READY=1\nSTATUS=" + OneLine(status, kMostStatus));
}
void DescriptorStore::Watchdog() { Tell("WATCHDOG=1"); }

bool DescriptorStore::Has(std::string_view name) const {
  const MutexLock lock(mutex_);
  return kept_.contains(name);
}

int64_t DescriptorStore::stored() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(kept_.size());
}

// Drops the message if the queue is full: the store reads nothing then.
void DescriptorStore::Tell(std::string message) {
  if (socket_ == nullptr) return;
  const MutexLock lock(mutex_);
  if (queue_.size() >= kMostQueued) return;
  Push({.message = std::move(message), .fd = {}, .done = {}});
}

void DescriptorStore::Push(Item item) {
  const bool asleep = queue_.empty();
  queue_.push_back(std::move(item));
  if (asleep) eventfd_write(wake_.get(), 1);
}

void DescriptorStore::Post(Done done, absl::Status status) {
  auto task = [done = std::move(done), status = std::move(status)] {
    done(status);
  };
  if (options_.post) return options_.post(std::move(task));
  task();
}

}  // namespace sluice::daemon
