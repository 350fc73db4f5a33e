#include "daemon/service/unit_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "daemon/service/log/log.h"
#include "proto/base/mutex.h"
#include "proto/base/replace_file.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice::daemon {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;

}  // namespace

struct UnitFile::Shared {
  std::string path;
  Mutex mutex;
  std::optional<UnitCache::Units> waiting ABSL_GUARDED_BY(mutex);
};

UnitFile::UnitFile(std::string path, TaskThread* codec)
    : shared_(std::make_shared<Shared>()), codec_(codec) {
  shared_->path = std::move(path);
}

UnitFile::~UnitFile() { Write(*shared_); }

absl::StatusOr<std::vector<KeyedUnit>> UnitFile::Read() const {
  const UniqueFd fd(open(shared_->path.c_str(),
                         O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::vector<KeyedUnit>();
  if (!fd) return ErrnoStatus(errno, "read " + shared_->path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(shared_->path + " is no regular file");
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadAll(fd.get(), kMaxFileBytes, shared_->path));
  auto units = plan::DecodeUnits(bytes);
  if (!units.ok()) return Annotate(units.status(), shared_->path);
  std::vector<KeyedUnit> keyed;
  for (plan::UnitPlan& unit : *units) {
    std::string key = plan::UnitKey(unit.trace);
    keyed.push_back({std::move(key),
                     std::make_shared<const plan::UnitPlan>(std::move(unit))});
  }
  return keyed;
}

void UnitFile::Save(UnitCache::Units units) {
  {
    const MutexLock lock(shared_->mutex);
    const bool queued = shared_->waiting.has_value();
    shared_->waiting = std::move(units);
    if (queued) return;
  }
  codec_->Run([shared = shared_] { Write(*shared); });
}

void UnitFile::Write(Shared& shared) {
  std::optional<UnitCache::Units> units;
  {
    const MutexLock lock(shared.mutex);
    units = std::exchange(shared.waiting, std::nullopt);
  }
  if (!units) return;
  std::vector<plan::UnitPlan> plain;
  for (const auto& unit : *units) plain.push_back(*unit);
  const absl::Status status =
      ReplaceFile(shared.path, plan::EncodeUnits(plain));
  if (status.ok()) return;
  WriteLog(LogLevel::kWarning, "plan: the plan cache was not saved: " +
                                   std::string(status.message()));
}

}  // namespace sluice::daemon
