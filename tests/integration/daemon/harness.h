// A real sluiced in a folder of its own, and raw clients that speak the wire
// protocol to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/session.pb.h"
#include "proto/wire.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {

// How the daemon is started. `user` and `user_namespace` need root.
struct DaemonLimits {
  int open_files = 0;  // soft and hard limit, or 0 for this process's limits
  uid_t user = 0;      // runs as this user; if not root, without capabilities
  bool user_namespace = false;  // runs in a user namespace that maps only root
  bool kept = false;            // runs under a sluiced-keeper
};

class RunningDaemon {
 public:
  // Starts the daemon with this TOML (HTTP is off unless the text enables it)
  // and waits until it is ready; fails the test otherwise.
  explicit RunningDaemon(const std::string& toml = "",
                         const DaemonLimits& limits = {});
  ~RunningDaemon();
  RunningDaemon(const RunningDaemon&) = delete;

  const std::string& runtime_dir() const { return directory_.path(); }
  std::string socket() const { return directory_.File("session.sock"); }
  std::string http_socket() const { return directory_.File("http.sock"); }
  // With `kept`, process() and pid() are the keeper's.
  Child& process() { return *process_; }
  pid_t pid() const { return process_->pid(); }
  // Sends SIGKILL, and starts the next daemon in the same folder with the same
  // settings.
  void KillAndStartNext();
  // Returns the ready line's text after `name=`, up to a blank.
  std::string ReadyField(const std::string& name);
  // Returns the value of a line of /proc/PID/status such as "VmRSS", or 0.
  Bytes Memory(const std::string& line) const;
  int Descriptors() const;

 private:
  void Start();

  TempDir directory_;
  std::vector<std::string> argv_;
  bool kept_;
  std::unique_ptr<Child> process_;
};

// Returns the descriptors that a rank of GPU `gpu` sends with its Hello.
std::vector<UniqueFd> GpuNodes(int client, int gpu);

// One session, with one blocking call at a time. Events that arrive during a
// call are kept for NextEvent.
class RawClient {
 public:
  static absl::StatusOr<RawClient> Connect(const std::string& socket);

  struct Reply {
    wire::Reply body;
    std::vector<UniqueFd> fds;
  };
  // Sends a request and returns its reply, with the descriptors of all parts of
  // a lease. An error reply becomes its absl::Status. `id` 0 means the next id.
  absl::StatusOr<Reply> Call(const wire::Request& request,
                             std::vector<int> fds = {}, uint64_t id = 0);
  absl::StatusOr<Reply> Hello(const std::string& job, int rank = 0,
                              int ranks = 1, int gpu = 0);
  absl::StatusOr<Reply> Observe();
  absl::StatusOr<Reply> Lease(wire::Lease::Kind kind, Bytes size,
                              int ordinal = 0);
  absl::StatusOr<Reply> Free(uint64_t lease);
  // Returns the next event, DeadlineExceeded if none came, or Unavailable if
  // the daemon closed the session.
  absl::StatusOr<wire::Event> NextEvent(absl::Duration timeout,
                                        UniqueFd* fd = nullptr);

  // The generation of the daemon that sent the last packet.
  uint64_t generation() const { return generation_; }
  int fd() const { return socket_.get(); }
  UniqueFd& socket() { return socket_; }

 private:
  explicit RawClient(UniqueFd socket) : socket_(std::move(socket)) {}
  absl::StatusOr<wire::Message> ReceiveWithin(absl::Duration timeout);

  UniqueFd socket_;
  uint64_t next_id_ = 1;
  uint64_t generation_ = 0;
  std::vector<wire::Message> events_;
};

// Expects that a daemon with the kept policy `text` does not start, and that
// --check-config fails: exit status 2, and all of `words` on standard error.
void ExpectPolicyIsRefused(const std::string& text,
                           const std::vector<std::string>& words);

// Returns the pool of GPU `gpu`, as the daemon at `socket` tells an observer.
absl::StatusOr<wire::Pool> GpuPool(const std::string& socket, int gpu);
absl::StatusOr<wire::Pool> HostPool(const std::string& socket, int numa);
// Waits until the whole pool of GPU `gpu` is free. Returns the time it took, or
// DeadlineExceeded.
absl::StatusOr<absl::Duration> WaitUntilFree(const std::string& socket, int gpu,
                                             absl::Duration timeout);
// Waits until the daemon has read all use pages after this call began.
// `limits_page` is the descriptor of the daemon's limits page.
void AwaitRefills(int limits_page);

}  // namespace sluice::testing
