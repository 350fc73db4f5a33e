// Reads clients' profiles for policy, with limits, and fairly to users.
//
// A profile is untrusted. Its cost is limited before it is read (bytes, and the
// number per session and per user), while it is decoded (values, so that a
// short text cannot become a large object), and while policy keeps it
// (`profile_bytes` of the quotas). Profiles are decoded one at a time on the
// codec thread; FairQueue shares the thread's seconds (`codec_seconds`), and
// other work gets a turn in between. A session's end drops its profiles.
//
// Thread safety: loop's thread only. A profile may be dropped on any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/node/types.h"
#include "daemon/core/planning/plans.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"

namespace sluice::daemon {

struct ProfileLimits {
  Bytes encoded = MiB(4);   // one profile
  size_t values = 1 << 19;  // JSON values of a profile; a buffer has five
  size_t per_session = 4;   // waiting to be read
  size_t per_user = 256;    // waiting to be read
  size_t all = 1024;        // waiting to be read
};

class ProfileReader {
 public:
  using Done = std::function<void(SessionId, RequestId,
                                  absl::StatusOr<ProfileWithHash>)>;

  // `loop` and `quotas` must outlive the reader. `codec` must end before the
  // reader, because its tasks use the reader. `done` runs on the loop's thread.
  ProfileReader(Loop* loop, TaskThread* codec, Quotas* quotas, Done done,
                ProfileLimits limits = {});

  // Moves `memfd`, which is sealed (wire::CheckMemfd), and calls `done` later.
  // Does not move `memfd` if it refuses (ResourceExhausted, InvalidArgument).
  absl::Status Read(SessionId session, RequestId request, const Principal& who,
                    UniqueFd& memfd);
  // Drops the session's profiles; `done` is not called.
  void Forget(SessionId session);
  // Gives back the quota of dropped profiles. Call before reading quotas.
  void GiveBackDropped();

  size_t waiting() const { return queue_.waiting(); }

 private:
  struct Entry {
    SessionId session;
    RequestId request;
    std::shared_ptr<UniqueFd> memfd;  // shared by copies of a task
  };
  struct Dropped;

  void Start();
  void Finish(const Principal& who, const Entry& entry, absl::Duration time,
              absl::StatusOr<ProfileWithHash> read);
  // Charges the profile's bytes to the user's quota until the last reference to
  // the profile is gone.
  absl::Status Keep(const Principal& who,
                    std::shared_ptr<const plan::RankProfile>& profile);

  Loop* loop_;
  TaskThread* codec_;
  Quotas* quotas_;
  const Done done_;
  const ProfileLimits limits_;
  FairQueue<Principal, Entry> queue_;
  std::map<SessionId, size_t> by_session_;  // profiles waiting or being read
  SessionId reading_;  // 0: none, or its session was forgotten
  bool busy_ = false;
  const std::shared_ptr<Dropped> dropped_;
};

}  // namespace sluice::daemon
