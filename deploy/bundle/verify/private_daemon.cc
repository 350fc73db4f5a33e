#include "deploy/bundle/verify/private_daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "client/session/session.h"
#include "deploy/bundle/verify/check.h"
#include "proto/base/file_text.h"
#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

using client::Region;
using client::Session;
using device::CopyDirection;

constexpr absl::Duration kPrivateDaemonNap = absl::Milliseconds(10);
constexpr char kConfiguration[] = "sluiced.toml";

std::string Beside(const char* program) {
  return std::filesystem::read_symlink("/proc/self/exe")
      .replace_filename(program);
}

// Only this user can connect to the socket, so every rank may use every GPU.
void WriteConfiguration(const std::string& path,
                        const PrivateDaemon::Pools& pools) {
  std::ofstream(path) << fmt::format(
      "[device]\ndriver = \"cuda\"\n[gpus]\naccess = \"any\"\n[pools]\n"
      "gpu_bytes = \"{}KiB\"\nhost_bytes = \"{}KiB\"\n[http]\nlisten = \"\"\n",
      pools.gpu / KiB(1), pools.host / KiB(1));
}

constexpr char kFilled[] = "filled";
constexpr char kSame[] = "same";

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

// ---- The rank's process ----

constexpr Bytes kTenantHost = MiB(32);
constexpr int kPieces = 16;  // pieces of GPU memory to read back, at most
// A killed rank's memory is free only when the kernel has ended it.
constexpr absl::Duration kWait = absl::Seconds(10);

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

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

  // Compares the first piece, the last one, and some between.
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

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateDaemon>> PrivateDaemon::Start(
    const Pools& pools, absl::Time until) {
  for (const char* program : {"sluiced-keeper", "sluiced", "sluice-worker"}) {
    if (!std::filesystem::exists(Beside(program))) {
      return absl::NotFoundError(
          fmt::format("there is no {} beside this program", program));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(TemporaryFolder folder,
                          TemporaryFolder::Make("daemon"));
  const std::string configuration = folder.path() + "/" + kConfiguration;
  WriteConfiguration(configuration, pools);
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t keeper,
      Spawn({Beside("sluiced-keeper"), "--runtime-dir", folder.path(), "--",
             "--config", configuration},
            {.name = "sluiced-keeper",
             .signals = SpawnOptions::Signals::kDefault}));
  auto daemon = std::unique_ptr<PrivateDaemon>(
      new PrivateDaemon(std::move(folder), keeper));
  SLUICE_RETURN_IF_ERROR(daemon->AwaitServing(until));
  return daemon;
}

PrivateDaemon::~PrivateDaemon() {
  if (keeper_ != 0) EndDescendants();
}

absl::Status PrivateDaemon::AwaitServing(absl::Time until) const {
  while (!client::DaemonListens(socket())) {
    if (HasEnded(keeper_)) {
      return absl::InternalError("sluiced did not start: the log says why");
    }
    if (absl::Now() >= until) {
      return absl::DeadlineExceededError("sluiced did not serve in time");
    }
    absl::SleepFor(kPrivateDaemonNap);
  }
  return absl::OkStatus();
}

absl::StatusOr<pid_t> PrivateDaemon::Daemon() const {
  for (const pid_t pid : Descendants(keeper_)) {
    if (TextOf(fmt::format("/proc/{}/comm", pid)) == "sluiced\n") return pid;
  }
  return absl::InternalError("no sluiced runs under sluiced-keeper");
}

absl::StatusOr<Bytes> PrivateDaemon::Leased() const {
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, client::ListGpus(socket()));
  Bytes leased;
  for (const client::GpuState& gpu : gpus) leased += gpu.leased;
  return leased;
}

absl::Status PrivateDaemon::KillDaemon() {
  SLUICE_ASSIGN_OR_RETURN(const pid_t pid, Daemon());
  const UniqueFd pidfd = PidfdOf(pid);
  if (!pidfd || kill(pid, SIGKILL) != 0) {
    return ErrnoStatus(errno, "kill sluiced");
  }
  pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

absl::Status PrivateDaemon::End(absl::Time until) {
  kill(keeper_, SIGTERM);
  while (!HasEnded(keeper_)) {
    if (absl::Now() >= until) {
      return absl::DeadlineExceededError("sluiced did not end in time");
    }
    absl::SleepFor(kPrivateDaemonNap);
  }
  int status = 0;
  waitpid(std::exchange(keeper_, 0), &status, 0);
  if (status != 0) {
    return absl::InternalError("sluiced-keeper " + HowItEnded(status));
  }
  std::filesystem::remove(folder_.path() + "/" + kConfiguration);
  for (const auto& left : std::filesystem::directory_iterator(folder_.path())) {
    return absl::InternalError("sluiced left " +
                               left.path().filename().string());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tenant>> Tenant::Start(const Options& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "make a socket pair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t pid,
      Spawn({std::filesystem::read_symlink("/proc/self/exe").string(),
             kBeATenant, options.socket, options.job,
             std::to_string(options.gpu), std::to_string(options.ranks)},
            {.files = {{theirs.get(), STDIN_FILENO},
                       {theirs.get(), STDOUT_FILENO}},
             .signals = SpawnOptions::Signals::kDefault}));
  return std::unique_ptr<Tenant>(
      new Tenant(pid, std::move(ours), options.name));
}

Tenant::~Tenant() {
  if (pid_ != 0) Kill();
}

absl::Status Tenant::Await(const std::string& word, absl::Time until) {
  const auto line = ReadLine(socket_, until);
  if (line.ok() && *line == word) return absl::OkStatus();
  return absl::Status(
      line.ok() ? absl::StatusCode::kInternal : line.status().code(),
      fmt::format(
          "the rank of {} {}", name_,
          line.ok() ? "says: " + *line : std::string(line.status().message())));
}

absl::Status Tenant::AwaitFilled(absl::Time until) {
  return Await(kFilled, until);
}

absl::Status Tenant::FindSame(absl::Time until) {
  // Await reports a rank that has ended.
  send(socket_.get(), "?", 1, MSG_NOSIGNAL);
  return Await(kSame, until);
}

void Tenant::Kill() {
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, 0), nullptr, 0);
}

absl::Status Tenant::End(absl::Time until) {
  shutdown(socket_.get(), SHUT_WR);
  const auto line = ReadLine(socket_, until);
  if (absl::IsDeadlineExceeded(line.status())) {
    return absl::DeadlineExceededError(
        fmt::format("the rank of {} does not end in time", name_));
  }
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(fmt::format("the rank of {} {} by itself{}", name_,
                                         HowItEnded(status),
                                         line.ok() ? ": " + *line : ""));
}

int BeATenant(const std::vector<std::string>& arguments) {
  int gpu = 0, ranks = 0;
  if (arguments.size() != 4 || !absl::SimpleAtoi(arguments[2], &gpu) ||
      !absl::SimpleAtoi(arguments[3], &ranks)) {
    return 2;
  }
  const absl::Status status =
      Serve({.socket = arguments[0],
             .job = arguments[1],
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
