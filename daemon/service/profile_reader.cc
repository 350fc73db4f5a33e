#include "daemon/service/profile_reader.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "proto/base/find.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/units.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

Bytes ProfileSize(const plan::RankProfile& profile) {
  size_t bytes = sizeof(profile);
  for (const plan::SegmentKind& segment : profile.segments) {
    bytes += sizeof(segment) + segment.name.capacity() +
             segment.trace.buffers.capacity() * sizeof(plan::Buffer);
  }
  for (const plan::SkeletalClass& each : profile.classes) {
    bytes += sizeof(each) + each.name.capacity() + each.why.capacity();
  }
  return Bytes(static_cast<int64_t>(bytes));
}

// Returns an upper bound of the number of JSON values. Each value but the first
// follows one of these characters; some of the characters are in texts.
size_t CountValues(std::string_view bytes) {
  return static_cast<size_t>(std::count_if(
      bytes.begin(), bytes.end(),
      [](char c) { return c == ',' || c == ':' || c == '[' || c == '{'; }));
}

absl::StatusOr<ProfileWithHash> Decode(const UniqueFd& memfd,
                                       size_t most_values) {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, wire::FromMemfd(memfd));
  if (CountValues(bytes) > most_values) {
    return absl::InvalidArgumentError(fmt::format(
        "the profile of {} bytes has more than {} values (a buffer has five): "
        "record fewer segments",
        bytes.size(), most_values));
  }
  SLUICE_ASSIGN_OR_RETURN(plan::RankProfile profile,
                          plan::DecodeRankProfile(bytes));
  ProfileWithHash read{nullptr, plan::HashProfiles({profile}), {}};
  for (const plan::SegmentKind& kind : profile.segments) {
    read.units.push_back(plan::UnitKey(kind.trace));
  }
  read.profile = std::make_shared<const plan::RankProfile>(std::move(profile));
  return read;
}

}  // namespace

// Bytes of dropped profiles. Any thread may drop a profile, but only the loop's
// thread may give back its quota.
struct ProfileReader::Dropped {
  Mutex mutex;
  std::map<Principal, Bytes> bytes ABSL_GUARDED_BY(mutex);
};

ProfileReader::ProfileReader(Loop* loop, TaskThread* codec, Quotas* quotas,
                             Done done, ProfileLimits limits)
    : loop_(loop),
      codec_(codec),
      quotas_(quotas),
      done_(std::move(done)),
      limits_(limits),
      dropped_(std::make_shared<Dropped>()) {}

void ProfileReader::GiveBackDropped() {
  const MutexLock lock(dropped_->mutex);
  for (const auto& [who, size] : std::exchange(dropped_->bytes, {})) {
    quotas_->GiveBack(who, Resource::kProfileBytes, size.count());
  }
}

absl::Status ProfileReader::Keep(
    const Principal& who, std::shared_ptr<const plan::RankProfile>& profile) {
  GiveBackDropped();
  const Bytes size = ProfileSize(*profile);
  SLUICE_RETURN_IF_ERROR(
      Annotate(quotas_->Ask(who, Resource::kProfileBytes, size.count()),
               fmt::format("a profile of {} bytes, decoded", size.count())));
  const plan::RankProfile* raw = profile.get();
  profile = std::shared_ptr<const plan::RankProfile>(
      raw, [dropped = dropped_, owner = std::move(profile), who,
            size](const plan::RankProfile*) mutable {
        owner.reset();
        const MutexLock lock(dropped->mutex);
        dropped->bytes[who] += size;
      });
  return absl::OkStatus();
}

absl::Status ProfileReader::Read(SessionId session, RequestId request,
                                 const Principal& who, UniqueFd& memfd) {
  struct stat info;
  if (fstat(memfd.get(), &info) != 0) return ErrnoStatus(errno, "fstat");
  if (info.st_size > limits_.encoded.count()) {
    return absl::InvalidArgumentError(fmt::format(
        "the profile has {} bytes, and the limit is {}: record fewer segments",
        info.st_size, limits_.encoded.count()));
  }
  const auto full = [](const std::string& whose, size_t waiting, size_t most) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} profiles of {} wait to be read, and the limit is {}: wait for "
        "their answers, then submit again",
        waiting, whose, most));
  };
  const size_t own = FindOr(by_session_, session);
  if (own >= limits_.per_session) {
    return full("this session", own, limits_.per_session);
  }
  if (queue_.waiting(who) >= limits_.per_user) {
    return full(Name(who), queue_.waiting(who), limits_.per_user);
  }
  if (queue_.waiting() >= limits_.all) {
    return full("all users", queue_.waiting(), limits_.all);
  }
  ++by_session_[session];
  queue_.Push(who,
              {session, request, std::make_shared<UniqueFd>(std::move(memfd))});
  Start();
  return absl::OkStatus();
}

// The next profile is chosen when the current one has been read, so that other
// work of the codec thread gets a turn in between.
void ProfileReader::Start() {
  if (busy_) return;
  auto next = queue_.Pop();
  if (!next) return;
  busy_ = true;
  reading_ = next->second.session;
  codec_->Run([this, who = next->first, entry = std::move(next->second)] {
    const absl::Duration before = CpuTimeOfThisThread();
    auto read = Decode(*entry.memfd, limits_.values);
    entry.memfd->Reset();
    const absl::Duration time = CpuTimeOfThisThread() - before;
    loop_->Post([this, who, entry, time, read = std::move(read)]() mutable {
      Finish(who, entry, time, std::move(read));
    });
  });
}

void ProfileReader::Finish(const Principal& who, const Entry& entry,
                           absl::Duration time,
                           absl::StatusOr<ProfileWithHash> read) {
  const SessionId session = entry.session;
  busy_ = false;
  queue_.Spent(who, time);
  quotas_->Charge(who, Resource::kCodecTime, absl::ToInt64Microseconds(time));
  const bool forgotten = std::exchange(reading_, SessionId()) != session;
  Start();
  if (forgotten) return;
  if (--by_session_.at(session) == 0) by_session_.erase(session);
  const absl::Status kept =
      read.ok() ? Keep(who, read->profile) : read.status();
  if (!kept.ok()) read = kept;
  done_(session, entry.request, std::move(read));
}

void ProfileReader::Forget(SessionId session) {
  if (by_session_.erase(session) == 0) return;
  if (reading_ == session) reading_ = SessionId();
  queue_.Remove(
      [session](const Entry& each) { return each.session == session; });
}

}  // namespace sluice::daemon
