// Runs the kit's own daemon on the free GPUs and checks: memory of killed ranks
// can be leased again, whole and usable; ranks and their memory outlive a
// killed daemon; no memory stays in use at the end.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "client/session/session.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/private_daemon.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

using client::Region;
using client::Session;
using device::CopyDirection;
using nlohmann::json;

constexpr char kFilled[] = "filled";
constexpr char kSame[] = "same";

// ---- The rank's process ----

constexpr Bytes kTenantHost = MiB(32);
constexpr int kPieces = 16;  // at most so many pieces are read back
// A killed rank's memory is free only when the kernel has ended the rank.
constexpr absl::Duration kWait = absl::Seconds(10);

class Holder {
 public:
  static absl::StatusOr<std::unique_ptr<Holder>> Open(
      const client::SessionOptions& options) {
    auto holder = std::make_unique<Holder>();
    SLUICE_ASSIGN_OR_RETURN(holder->session_, Session::Open(options));
    const client::NodeLimits limits = holder->session_->limits();
    SLUICE_ASSIGN_OR_RETURN(holder->gpu_,
                            holder->session_->LeaseGpu(limits.gpu_total));
    SLUICE_ASSIGN_OR_RETURN(holder->host_,
                            holder->session_->LeaseHost(kTenantHost));
    SLUICE_ASSIGN_OR_RETURN(holder->stream_,
                            holder->driver().CreateStream(limits.device));
    return holder;
  }
  ~Holder() {
    if (stream_.value() != 0) driver().DestroyStream(stream_).IgnoreError();
  }

  absl::Status Fill() {
    value_ = static_cast<std::byte>(static_cast<int>(value_) * 5 + 77);
    SLUICE_RETURN_IF_ERROR(
        driver().FillAsync(gpu_->data(), value_, gpu_->size(), stream_));
    return driver().SynchronizeStream(stream_);
  }

  // Compares the first piece, the last piece, and some between.
  absl::Status Compare() {
    const Bytes size = std::min(host_->size(), gpu_->size());
    const size_t last = (gpu_->size() - size).size();
    const size_t pieces = std::min<size_t>(kPieces, last / size.size() + 2);
    for (size_t i = 0; i < pieces; ++i) {
      const size_t from = i + 1 == pieces ? last : last / (pieces - 1) * i;
      SLUICE_RETURN_IF_ERROR(ComparePiece(from, size));
    }
    return absl::OkStatus();
  }

 private:
  device::Driver& driver() { return session_->driver(); }

  absl::Status ComparePiece(size_t from, Bytes size) {
    std::fill_n(host_->data(), size.size(), ~value_);
    SLUICE_RETURN_IF_ERROR(
        driver().CopyAsync(host_->data(), gpu_->data() + from, size,
                           CopyDirection::kDeviceToHost, stream_));
    SLUICE_RETURN_IF_ERROR(driver().SynchronizeStream(stream_));
    const std::byte* const end = host_->data() + size.size();
    const std::byte* const wrong =
        std::find_if(static_cast<const std::byte*>(host_->data()), end,
                     [this](std::byte b) { return b != value_; });
    if (wrong == end) return absl::OkStatus();
    return absl::DataLossError(
        fmt::format("byte {} of its {} is not what was written",
                    from + static_cast<size_t>(wrong - host_->data()),
                    FormatBytes(gpu_->size())));
  }

  std::unique_ptr<Session> session_;
  std::unique_ptr<Region> gpu_, host_;
  device::Stream stream_;
  std::byte value_{0};
};

absl::Status Serve(const client::SessionOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto holder, Holder::Open(options));
  SLUICE_RETURN_IF_ERROR(holder->Fill());
  SLUICE_RETURN_IF_ERROR(holder->Compare());
  PrintLine(kFilled);
  for (char asked; read(STDIN_FILENO, &asked, 1) == 1;) {
    SLUICE_RETURN_IF_ERROR(holder->Compare());
    SLUICE_RETURN_IF_ERROR(holder->Fill());
    SLUICE_RETURN_IF_ERROR(holder->Compare());
    PrintLine(kSame);
  }
  return absl::OkStatus();
}

// ---- The ranks, seen by the check ----

// DeadlineExceeded: no line by `until`. Internal: the other process has ended.
absl::StatusOr<std::string> ReadLine(const UniqueFd& from, absl::Time until) {
  std::string line;
  while (true) {
    pollfd ready = {.fd = from.get(), .events = POLLIN, .revents = 0};
    const auto patience = absl::ToInt64Milliseconds(until - absl::Now());
    const int said =
        patience <= 0 ? 0 : poll(&ready, 1, static_cast<int>(patience));
    if (said < 0 && errno == EINTR) continue;
    if (said <= 0) return absl::DeadlineExceededError("says nothing in time");
    char c = 0;
    const ssize_t got = read(from.get(), &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::InternalError("has ended: the log says why");
    if (c == '\n') return line;
    line += c;
  }
}

// A rank, in a process that can be killed, that fills memory of a
// PrivateDaemon.
class Tenant {
 public:
  // `gpu` is the index of the GPU, and the rank's number; `name` is the GPU's
  // name in messages: "GPU 3".
  static absl::StatusOr<std::unique_ptr<Tenant>> Start(
      const std::string& socket, const std::string& job, size_t gpu,
      size_t ranks, std::string name) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return ErrnoStatus(errno, "make a socket pair");
    }
    UniqueFd ours(ends[0]);
    const UniqueFd theirs(ends[1]);
    SLUICE_ASSIGN_OR_RETURN(
        const pid_t pid, Spawn({SelfPath(), kBeATenant, socket, job,
                                std::to_string(gpu), std::to_string(ranks)},
                               {.files = {{theirs.get(), STDIN_FILENO},
                                          {theirs.get(), STDOUT_FILENO}},
                                .signals = SpawnOptions::Signals::kDefault}));
    return std::unique_ptr<Tenant>(
        new Tenant(pid, std::move(ours), std::move(name)));
  }
  ~Tenant() {
    if (pid_ != 0) Kill();
  }
  Tenant(const Tenant&) = delete;

  // Waits until the rank has leased the whole pool of its GPU and a little host
  // memory, and has read back what it filled the GPU's memory with. Internal:
  // the rank reported an error or ended. DeadlineExceeded: no answer.
  absl::Status AwaitFilled(absl::Time until) { return Await(kFilled, until); }

  // Checks that the memory is unchanged and can be filled again.
  absl::Status FindSame(absl::Time until) {
    // An error is ignored: `Await` reports a rank that has ended.
    send(socket_.get(), "?", 1, MSG_NOSIGNAL);
    return Await(kSame, until);
  }

  void Kill() {
    kill(pid_, SIGKILL);
    Reap(std::exchange(pid_, 0));
  }

  // Makes the rank free its memory and end with status 0.
  absl::Status End(absl::Time until) {
    shutdown(socket_.get(), SHUT_WR);
    const auto line = ReadLine(socket_, until);
    if (absl::IsDeadlineExceeded(line.status())) {
      return absl::DeadlineExceededError(
          fmt::format("the rank of {} does not end in time", name_));
    }
    const std::string bad_end = Reap(std::exchange(pid_, 0));
    if (bad_end.empty()) return absl::OkStatus();
    return absl::InternalError(fmt::format("the rank of {} {} by itself{}",
                                           name_, bad_end,
                                           line.ok() ? ": " + *line : ""));
  }

 private:
  Tenant(pid_t pid, UniqueFd socket, std::string name)
      : pid_(pid), socket_(std::move(socket)), name_(std::move(name)) {}

  absl::Status Await(const std::string& word, absl::Time until) {
    const auto line = ReadLine(socket_, until);
    if (line.ok() && *line == word) return absl::OkStatus();
    return absl::Status(
        line.ok() ? absl::StatusCode::kInternal : line.status().code(),
        fmt::format("the rank of {} {}", name_,
                    line.ok() ? "says: " + *line
                              : std::string(line.status().message())));
  }

  pid_t pid_;        // 0: reaped
  UniqueFd socket_;  // connected to the rank's standard input and output
  const std::string name_;
};
using Tenants = std::vector<std::unique_ptr<Tenant>>;

// ---- The check ----

// The pool takes 3/4 of a GPU: no second pool fits beside it, but contexts do.
constexpr int kDaemonPartOfGpu = 4;
constexpr Bytes kHostPerGpu = MiB(64);
// Differences below 1/16 of a GPU's memory are other processes' contexts.
constexpr int kNoise = 16;

class Course {
 public:
  explicit Course(const Surroundings& here)
      : here_(here),
        until_(absl::Now() + here.limit * 0.9),
        patience_(here.limit / 9) {}

  const json& value() const { return value_; }

  absl::Status Run() {
    SLUICE_ASSIGN_OR_RETURN(driver_, device::OpenCudaDriver());
    SLUICE_ASSIGN_OR_RETURN(const auto before, Usage());
    PrintLine("the daemon starts");
    SLUICE_ASSIGN_OR_RETURN(daemon_,
                            PrivateDaemon::Start(PoolsFor(before), until_));
    SLUICE_RETURN_IF_ERROR(RanksAreKilled());
    SLUICE_RETURN_IF_ERROR(DaemonIsKilled());
    SLUICE_RETURN_IF_ERROR(AllEnd());
    return AwaitGivenBack(before);
  }

 private:
  absl::StatusOr<std::vector<device::MemoryUse>> Usage() const {
    std::vector<device::MemoryUse> uses;
    for (size_t i = 0; i < here_.gpus.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(
          uses.emplace_back(),
          driver_->Usage(device::Placement::Gpu(DeviceIndex(i))));
    }
    return uses;
  }

  static PrivateDaemon::Pools PoolsFor(
      const std::vector<device::MemoryUse>& uses) {
    Bytes least = uses[0].total;
    for (const device::MemoryUse& use : uses) {
      least = std::min(least, use.total - use.used);
    }
    return {.gpu = least / kDaemonPartOfGpu * (kDaemonPartOfGpu - 1),
            .host = kHostPerGpu * std::ssize(uses)};
  }

  absl::StatusOr<Tenants> Lease(const char* job) {
    Tenants tenants;
    for (size_t i = 0; i < here_.gpus.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(
          tenants.emplace_back(),
          Tenant::Start(daemon_->socket(), job, i, here_.gpus.size(),
                        fmt::format("GPU {}", here_.gpus[i])));
    }
    for (const auto& tenant : tenants) {
      SLUICE_RETURN_IF_ERROR(tenant->AwaitFilled(until_));
    }
    return tenants;
  }

  // Checks that ranks can lease the whole pool after other ranks were killed.
  absl::Status RanksAreKilled() {
    PrintLine("ranks lease and fill all of the pool");
    SLUICE_ASSIGN_OR_RETURN(Tenants first, Lease("first"));
    PrintLine("the ranks are killed, and others lease all of it");
    const double killed = MonotonicSeconds();
    for (const auto& tenant : first) tenant->Kill();
    SLUICE_ASSIGN_OR_RETURN(tenants_, Lease("second"));
    value_["seconds_until_leased_again"] = MonotonicSeconds() - killed;
    return absl::OkStatus();
  }

  absl::Status DaemonIsKilled() {
    PrintLine("the daemon is killed while ranks hold leases");
    SLUICE_ASSIGN_OR_RETURN(const Bytes leased, daemon_->Leased());
    value_["leased_bytes"] = leased.count();
    const double killed = MonotonicSeconds();
    SLUICE_RETURN_IF_ERROR(daemon_->KillDaemon());
    auto now = daemon_->Leased();
    const auto taken_over = [&] {
      now = daemon_->Leased();
      return now.ok() && *now == leased;
    };
    if (!AwaitTrue(absl::Now() + patience_, taken_over)) {
      return absl::InternalError(
          fmt::format("the next daemon did not take over the leases of {}: {}",
                      FormatBytes(leased),
                      now.ok() ? "it knows " + FormatBytes(*now)
                               : std::string(now.status().message())));
    }
    value_["seconds_until_taken_over"] = MonotonicSeconds() - killed;
    for (const auto& tenant : tenants_) {
      SLUICE_RETURN_IF_ERROR(tenant->FindSame(until_));
    }
    PrintLine(
        "ranks of the next daemon are killed, and others lease all of it");
    for (const auto& tenant : tenants_) tenant->Kill();
    SLUICE_ASSIGN_OR_RETURN(tenants_, Lease("third"));
    return absl::OkStatus();
  }

  absl::Status AllEnd() {
    PrintLine("all end");
    for (const auto& tenant : tenants_) {
      SLUICE_RETURN_IF_ERROR(tenant->End(until_));
    }
    return daemon_->End(until_);
  }

  absl::Status AwaitGivenBack(const std::vector<device::MemoryUse>& before) {
    PrintLine("the driver has the memory again");
    const double ended = MonotonicSeconds();
    std::string taken;
    absl::Status fault;
    const auto given_back = [&] {
      const auto now = Usage();
      fault = now.status();
      taken.clear();
      for (size_t i = 0; fault.ok() && taken.empty() && i < now->size(); ++i) {
        const Bytes more = (*now)[i].used - before[i].used;
        if (more <= before[i].total / kNoise) continue;
        taken = fmt::format("GPU {}: {} more are in use than before",
                            here_.gpus[i], FormatBytes(more));
      }
      return taken.empty();
    };
    if (!AwaitTrue(absl::Now() + patience_, given_back)) {
      return absl::InternalError(
          fmt::format("{}, {} after the daemon and all ranks ended", taken,
                      absl::FormatDuration(patience_)));
    }
    SLUICE_RETURN_IF_ERROR(fault);
    value_["seconds_until_given_back"] = MonotonicSeconds() - ended;
    return absl::OkStatus();
  }

  const Surroundings& here_;
  const absl::Time until_;
  const absl::Duration patience_;  // limit of one wait
  json value_ = json::object();
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<PrivateDaemon> daemon_;
  Tenants tenants_;
};

}  // namespace

Result RunDaemon(const Surroundings& here) {
  const std::string expected =
      "what dead ranks had is leased again, live ranks outlive the daemon with "
      "their memory, nothing is left";
  ShowOnly(here.gpus);
  Course course(here);
  const absl::Status status = course.Run();
  return status.ok() ? Passed(course.value(), expected)
                     : Failed(course.value(), expected, status);
}

int BeATenant(const std::vector<std::string>& arguments) {
  int gpu = 0, ranks = 0;
  if (arguments.size() != 5 || !absl::SimpleAtoi(arguments[3], &gpu) ||
      !absl::SimpleAtoi(arguments[4], &ranks)) {
    return 2;
  }
  const absl::Status status =
      Serve({.socket = arguments[1],
             .job = arguments[2],
             .rank = Rank(static_cast<uint64_t>(gpu)),
             .world_size = ranks,
             .local_ranks = ranks,
             .gpu = DeviceIndex(static_cast<uint64_t>(gpu)),
             .lease_wait = kWait});
  if (status.ok()) return 0;
  PrintLine(Printable(std::string(status.message())));
  return 1;
}

}  // namespace sluice::verify
