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

#include "absl/strings/str_split.h"
#include "proto/base/find.h"
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

std::vector<std::string> WordsOf(const WorkerOptions& worker,
                                 absl::Duration time_limit) {
  std::string flags = fmt::format(
      "--in-fd {} --out-fd {} --progress-fd {} --time-limit-s {:g} "
      "--memory-bytes {}",
      kWorkerIn, kWorkerOut, kWorkerProgress, absl::ToDoubleSeconds(time_limit),
      worker.memory.count());
  if (worker.uid) flags += fmt::format(" --uid {}", *worker.uid);
  if (worker.gid) flags += fmt::format(" --gid {}", *worker.gid);
  std::vector<std::string> words = absl::StrSplit(flags, ' ');
  words.insert(words.begin(), worker.path);
  return words;
}

// Reaps a worker that closed its end of the pipe; kills it after a second.
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
          : fmt::format(
                "the plan worker ended with status {}, without a message",
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
    const plan::RankProfile& profile = *question.profiles[i];
    for (const plan::RankPlan& rank : plan.ranks) {
      if (i < question.jobs.size() && rank.job != question.jobs[i]) continue;
      if (rank.rank != profile.rank) continue;
      for (size_t k = 0; k < rank.segments.size(); ++k) {
        const auto& [name, base, placement] = rank.segments[k];
        const plan::Trace& trace = profile.segments[k].trace;
        if (!placement.optimal() || name != profile.segments[k].name) continue;
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
  absl::Status Start(const WorkerOptions& worker);
  void Kill() {
    if (pid == 0) return;  // did not start, or is reaped
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = 0;
  }
};

absl::Status PlanSolver::Run::Start(const WorkerOptions& worker) {
  plan::PlanRequest request{ProfilesOf(question), question.resources, {}};
  for (const auto& unit : question.known) request.known.push_back(*unit);
  SLUICE_ASSIGN_OR_RETURN(
      const UniqueFd in,
      wire::ToMemfd("sluice plan request", plan::Encode(request)));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd answers(ends[0]);
  const UniqueFd end(ends[1]);
  fcntl(answers.get(), F_SETFL, O_NONBLOCK);  // the worker's writes may block
  errors = UniqueFd(memfd_create("sluice worker stderr", MFD_CLOEXEC));
  progress = UniqueFd(memfd_create("sluice worker progress", MFD_CLOEXEC));
  if (!errors || !progress) return ErrnoStatus(errno, "memfd_create");
  // SIGUSR1 is blocked until the worker has a handler for it.
  SpawnOptions options{.name = "the plan worker " + worker.path,
                       .blocked = {SIGUSR1},
                       .signals = SpawnOptions::Signals::kDefault};
  // Duplicates get high numbers: the worker's numbers may be in use here.
  std::vector<UniqueFd> high;
  const std::pair<const UniqueFd*, int> files[] = {{&in, kWorkerIn},
                                                   {&end, kWorkerOut},
                                                   {&progress, kWorkerProgress},
                                                   {&errors, STDERR_FILENO}};
  for (const auto& [fd, number] : files) {
    high.emplace_back(fcntl(fd->get(), F_DUPFD_CLOEXEC, 16));
    if (!high.back()) return ErrnoStatus(errno, "duplicate a descriptor");
    options.files.emplace_back(high.back().get(), number);
  }
  SLUICE_ASSIGN_OR_RETURN(pid,
                          Spawn(WordsOf(worker, question.time_limit), options));
  out = std::move(answers);
  return absl::OkStatus();
}

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
    codec_->Run([this, run = next->second] {
      const absl::Status status = run->Start(worker_);
      loop_->Post([this, run, status] { Started(run, status); });
    });
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
  if (const auto* run = FindOrNull(runs_, round)) (*run)->hurry = true;
}

absl::Time PlanSolver::TurnEnds(const Run& run) const {
  const bool wanted = run.hurry || queue_.waiting() > 0;
  if (!wanted || run.hurried || !run.started || !run.out) {
    return absl::InfiniteFuture();
  }
  return run.since + (run.hurry ? kHurriedTurn : kTurn);
}

absl::Time PlanSolver::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [round, run] : runs_) next = std::min(next, TurnEnds(*run));
  return next;
}

void PlanSolver::Expire() {
  for (const auto& [round, run] : runs_) {
    if (TurnEnds(*run) > loop_->now()) continue;
    run->hurried = true;
    kill(run->pid, SIGUSR1);
  }
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
    if (!run->started) continue;  // the codec thread still uses the run
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
  const auto found = runs_.extract(round);
  if (found.empty()) return;
  const auto& run = found.mapped();
  run->stopped = true;
  if (!run->launched) {
    queue_.Remove([&run](const auto& each) { return each == run; });
  }
  if (run->started) End(run);  // else `Started` calls End
}

void PlanSolver::End(const std::shared_ptr<Run>& run) {
  if (!run->out) return;  // it did not start, or `Finish` reaps it
  loop_->Remove(run->out.get());
  run->out.Reset();
  kill(run->pid, SIGKILL);
  // The codec thread reaps the worker, because freeing its memory takes a
  // while. If that thread ends before, the run's destructor reaps the worker.
  if (!ending_) codec_->Run([run] { run->Kill(); });
  Leave(run);
}

absl::StatusOr<SharedFd> PlanFiles::Of(PlanId plan, absl::Time now) {
  if (const File* known = FindOrNull(files_, plan)) return known->fd;
  const auto kept = core_->planning().FindPlan(plan, /*viewer=*/nullptr);
  if (kept == nullptr) {
    return absl::NotFoundError(
        fmt::format("plan {} is not kept any more", plan.value()));
  }
  auto fd = ToShared(wire::ToMemfd("sluice plan", plan::Encode(*kept)));
  if (!fd.ok()) return fd;
  if (files_.size() >= PlanRounds::kPlansKept) files_.erase(files_.begin());
  files_[plan] = {*fd, now + kKept};
  return fd;
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
