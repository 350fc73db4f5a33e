#include "daemon/service/plan_solver.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

constexpr int kWorkerIn = 3;
constexpr int kWorkerOut = 4;
constexpr int kWorkerProgress = 5;
constexpr size_t kMaxAnswerBytes = size_t{256} << 20;

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // The worker's writes may block.
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "make a pipe");
  }
  return pipe;
}

// dup2 onto a descriptor's own number would leave close-on-exec set.
absl::StatusOr<UniqueFd> MoveUp(const UniqueFd& fd) {
  const int moved = fcntl(fd.get(), F_DUPFD_CLOEXEC, 16);
  if (moved < 0) return ErrnoStatus(errno, "duplicate a descriptor");
  return UniqueFd(moved);
}

std::vector<std::string> WordsOf(const WorkerOptions& worker,
                                 absl::Duration time_limit) {
  std::vector<std::string> words = {
      worker.path,
      "--in-fd",
      std::to_string(kWorkerIn),
      "--out-fd",
      std::to_string(kWorkerOut),
      "--progress-fd",
      std::to_string(kWorkerProgress),
      "--time-limit-s",
      fmt::format("{:g}", absl::ToDoubleSeconds(time_limit)),
      "--memory-bytes",
      std::to_string(worker.memory.count())};
  const auto add = [&words](const char* flag, std::optional<uint32_t> id) {
    if (id) words.insert(words.end(), {flag, std::to_string(*id)});
  };
  add("--uid", worker.uid);
  add("--gid", worker.gid);
  return words;
}

absl::StatusOr<pid_t> Start(const WorkerOptions& worker, const UniqueFd& in,
                            const UniqueFd& out, const UniqueFd& progress,
                            const UniqueFd& errors, absl::Duration time_limit) {
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd high_in, MoveUp(in));
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd high_out, MoveUp(out));
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd high_progress, MoveUp(progress));
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd high_errors, MoveUp(errors));
  // SIGUSR1 is blocked until the worker has a handler for it.
  return Spawn(WordsOf(worker, time_limit),
               {.name = "the plan worker " + worker.path,
                .files = {{high_in.get(), kWorkerIn},
                          {high_out.get(), kWorkerOut},
                          {high_progress.get(), kWorkerProgress},
                          {high_errors.get(), STDERR_FILENO}},
                .blocked = {SIGUSR1},
                .signals = SpawnOptions::Signals::kDefault});
}

// A worker that has closed its end of the pipe should end soon.
int Reap(pid_t pid) {
  int status = 0;
  for (int tries = 0; tries < 1000; ++tries) {
    if (waitpid(pid, &status, WNOHANG) != 0) return status;
    usleep(1000);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  return status;
}

absl::Status WhyItFailed(int status, const UniqueFd& errors) {
  std::array<char, 1024> text;
  const ssize_t got = pread(errors.get(), text.data(), text.size(), 0);
  std::string line(text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  line = line.substr(0, line.find('\n'));
  if (!line.empty()) return absl::InternalError("plan worker: " + line);
  return absl::InternalError(
      WIFSIGNALED(status)
          ? fmt::format("the plan worker was killed by signal {}",
                        WTERMSIG(status))
          : fmt::format("the plan worker ended with status {} and no word",
                        WEXITSTATUS(status)));
}

std::vector<plan::RankProfile> ProfilesOf(const SolvePlan& question) {
  std::vector<plan::RankProfile> profiles;
  for (size_t i = 0; i < question.profiles.size(); ++i) {
    profiles.push_back(*question.profiles[i]);
    if (i < question.jobs.size()) profiles.back().job = question.jobs[i];
  }
  return profiles;
}

std::string Encode(const SolvePlan& question) {
  plan::PlanRequest request;
  request.profiles = ProfilesOf(question);
  request.resources = question.resources;
  for (const auto& unit : question.known) request.known.push_back(*unit);
  return plan::Encode(request);
}

absl::StatusOr<plan::NodePlan> CheckSolution(const SolvePlan& question,
                                             const std::string& answer) {
  SLUICE_ASSIGN_OR_RETURN(plan::NodePlan plan, plan::DecodeNodePlan(answer));
  SLUICE_RETURN_IF_ERROR(
      plan::ValidateNodePlan(ProfilesOf(question), question.resources, plan));
  return plan;
}

std::vector<KeyedUnit> NewUnits(const SolvePlan& question,
                                const plan::NodePlan& plan) {
  std::map<std::string, KeyedUnit> units;
  for (size_t i = 0; i < question.profiles.size(); ++i) {
    const auto& profile = question.profiles[i];
    for (const plan::RankPlan& rank : plan.ranks) {
      if (i < question.jobs.size() && rank.job != question.jobs[i]) continue;
      if (rank.rank != profile->rank) continue;
      for (size_t k = 0; k < rank.segments.size(); ++k) {
        const plan::Placement& placement = rank.segments[k].placement;
        const plan::Trace& trace = profile->segments[k].trace;
        if (!placement.optimal() ||
            rank.segments[k].name != profile->segments[k].name) {
          continue;
        }
        const std::string key = plan::UnitKey(trace);
        units[key] = {key,
                      std::make_shared<const plan::UnitPlan>(
                          plan::UnitPlan{plan::Canonical(trace), placement})};
      }
    }
  }
  for (const auto& known : question.known) {
    units.erase(plan::UnitKey(known->trace));
  }
  std::vector<KeyedUnit> fresh;
  for (auto& [key, unit] : units) fresh.push_back(std::move(unit));
  return fresh;
}

}  // namespace

struct PlanSolver::Run {
  SolvePlan question;
  // Used on the loop's thread:
  bool launched = false;  // it occupies a worker's place
  bool started = false;
  bool stopped = false;
  bool hurry = false;                         // its turn is shortened
  bool hurried = false;                       // SIGUSR1 was sent
  absl::Time since = absl::InfiniteFuture();  // when it started
  // Used by the codec thread before the start and after the pipe's end; in
  // between, while `out` is set, by the loop:
  pid_t pid = 0;
  UniqueFd out;
  UniqueFd errors;    // a memfd: the worker's stderr
  UniqueFd progress;  // a memfd: the worker's progress
  std::string answer;

  // The last reference may belong to a task that is never run.
  ~Run() { Kill(); }
  void Kill() {
    if (pid == 0) return;  // did not start, or is reaped
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = 0;
  }
};

PlanSolver::PlanSolver(Loop* loop, TaskThread* codec, WorkerOptions worker,
                       Done done)
    : loop_(loop),
      codec_(codec),
      worker_(std::move(worker)),
      done_(std::move(done)) {}

PlanSolver::~PlanSolver() {
  ending_ = true;  // the codec thread has ended
  queue_.Remove([](const auto&) { return true; });  // no more starts
  while (!runs_.empty()) Stop(runs_.begin()->first);
}

void PlanSolver::Solve(SolvePlan question) {
  auto run = std::make_shared<Run>();
  run->question = std::move(question);
  runs_[run->question.round] = run;
  queue_.Push(run->question.who, run);
  StartNext();
}

void PlanSolver::StartNext() {
  while (workers_ < kMostWorkers) {
    auto next = queue_.Pop(
        [this](const Principal& who) { return running_[who] < kMostOfAUser; });
    std::erase_if(running_, [](const auto& each) { return each.second == 0; });
    if (!next) return;
    ++workers_;
    ++running_[next->first];
    next->second->launched = true;
    Launch(next->second);
  }
}

void PlanSolver::Leave(const std::shared_ptr<Run>& run) {
  if (!std::exchange(run->launched, false)) return;
  const Principal& who = run->question.who;
  --workers_;
  --running_[who];
  if (run->since <= loop_->now()) {
    queue_.Spent(who, loop_->now() - run->since);
  }
  StartNext();
}

void PlanSolver::Hurry(PlanRoundId round) {
  if (const auto run = runs_.find(round); run != runs_.end()) {
    run->second->hurry = true;
  }
}

absl::Time PlanSolver::TurnEnds(const Run& run) const {
  const bool wanted = run.hurry || queue_.waiting() > 0;
  if (!wanted || run.hurried || !run.out) return absl::InfiniteFuture();
  return run.since + (run.hurry ? kHurriedTurn : kTurn);
}

absl::Time PlanSolver::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [round, run] : runs_) {
    if (run->started) next = std::min(next, TurnEnds(*run));
  }
  return next;
}

void PlanSolver::Expire() {
  for (const auto& [round, run] : runs_) {
    if (!run->started || TurnEnds(*run) > loop_->now()) continue;
    run->hurried = true;
    kill(run->pid, SIGUSR1);
  }
}

void PlanSolver::Launch(const std::shared_ptr<Run>& run) {
  codec_->Run([this, run] {
    const auto start = [&]() -> absl::Status {
      SLUICE_ASSIGN_OR_RETURN(
          const UniqueFd in,
          wire::ToMemfd("sluice plan request", Encode(run->question)));
      SLUICE_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
      run->errors = UniqueFd(memfd_create("sluice worker stderr", MFD_CLOEXEC));
      run->progress =
          UniqueFd(memfd_create("sluice worker progress", MFD_CLOEXEC));
      if (!run->errors || !run->progress) {
        return ErrnoStatus(errno, "memfd_create");
      }
      SLUICE_ASSIGN_OR_RETURN(
          run->pid, Start(worker_, in, pipe.write, run->progress, run->errors,
                          run->question.time_limit));
      run->out = std::move(pipe.read);
      return absl::OkStatus();
    };
    const absl::Status status = start();
    loop_->Post([this, run, status] { Started(run, status); });
  });
}

void PlanSolver::Started(const std::shared_ptr<Run>& run, absl::Status status) {
  run->started = true;
  run->since = loop_->now();
  if (run->stopped) {
    End(run);
    return Leave(run);
  }
  if (!status.ok()) {
    runs_.erase(run->question.round);
    Leave(run);
    return done_(run->question.round, status, {});
  }
  loop_->Add(run->out.get(), EPOLLIN, [this, run](uint32_t) { Read(run); });
}

void PlanSolver::Read(const std::shared_ptr<Run>& run) {
  std::array<char, 1 << 16> buffer;
  const ssize_t got = read(run->out.get(), buffer.data(), buffer.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0 && run->answer.size() + got <= kMaxAnswerBytes) {
    run->answer.append(buffer.data(), static_cast<size_t>(got));
    return;
  }
  Finish(run);
}

void PlanSolver::Finish(const std::shared_ptr<Run>& run) {
  loop_->Remove(run->out.get());
  run->out.Reset();
  codec_->Run([this, run] {
    const int status = Reap(run->pid);
    run->pid = 0;
    absl::StatusOr<plan::NodePlan> plan = WhyItFailed(status, run->errors);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      plan = CheckSolution(run->question, run->answer);
    }
    std::vector<KeyedUnit> units;
    if (plan.ok()) units = NewUnits(run->question, *plan);
    loop_->Post([this, run, plan = std::move(plan),
                 units = std::move(units)]() mutable {
      Leave(run);
      if (run->stopped) return;
      runs_.erase(run->question.round);
      done_(run->question.round, std::move(plan), std::move(units));
    });
  });
}

std::vector<std::pair<PlanRoundId, plan::PlanProgress>> PlanSolver::Progress()
    const {
  std::vector<std::pair<PlanRoundId, plan::PlanProgress>> all;
  for (const auto& [round, run] : runs_) {
    if (!run->started) continue;  // the codec thread uses it
    std::array<char, plan::kProgressBytes> line;
    const ssize_t got = pread(run->progress.get(), line.data(), line.size(), 0);
    if (got <= 0) continue;
    const auto progress =
        plan::ReadProgress({line.data(), static_cast<size_t>(got)});
    if (progress) all.emplace_back(round, *progress);
  }
  return all;
}

void PlanSolver::Stop(PlanRoundId round) {
  const auto found = runs_.find(round);
  if (found == runs_.end()) return;
  const auto run = found->second;
  runs_.erase(found);
  run->stopped = true;
  if (!run->launched) {
    queue_.Remove([&run](const auto& each) { return each == run; });
  }
  if (run->started) End(run);  // else Started ends it
}

void PlanSolver::End(const std::shared_ptr<Run>& run) {
  if (!run->out) return;  // did not start, or Finish reaps it
  loop_->Remove(run->out.get());
  run->out.Reset();
  kill(run->pid, SIGKILL);
  // On the codec thread, because freeing the worker's memory takes a while. If
  // that thread ends before, the run's destructor reaps it.
  if (!ending_) codec_->Run([run] { run->Kill(); });
  Leave(run);
}

absl::StatusOr<std::shared_ptr<const UniqueFd>> PlanFiles::Of(PlanId plan,
                                                              absl::Time now) {
  if (const auto known = files_.find(plan); known != files_.end()) {
    return known->second.fd;
  }
  const auto kept = core_->planning().FindPlan(plan, /*viewer=*/nullptr);
  if (kept == nullptr) {
    return absl::NotFoundError(
        fmt::format("plan {} is not kept any more", plan.value()));
  }
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd,
                          wire::ToMemfd("sluice plan", plan::Encode(*kept)));
  if (files_.size() >= PlanRounds::kPlansKept) files_.erase(files_.begin());
  auto shared = std::make_shared<const UniqueFd>(std::move(fd));
  files_[plan] = {shared, now + kKept};
  return shared;
}

absl::Time PlanFiles::deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [plan, file] : files_) next = std::min(next, file.drop_at);
  return next;
}

void PlanFiles::Expire(absl::Time now) {
  std::erase_if(files_,
                [now](const auto& each) { return each.second.drop_at <= now; });
}

}  // namespace sluice::daemon
