#include "client/train/rank.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_split.h"
#include "client/session/session.h"
#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/agreement.h"
#include "client/torch/run/host_stage.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/check/check.h"
#include "client/train/launch/outcome.h"
#include "client/train/launch/peer_line.h"
#include "client/train/step/stepper.h"
#include "client/train/watch/rank_watch.h"
#include "planner/stream/states.h"
#include "proto/base/numa.h"
#include "proto/base/peer_fault.h"
#include "proto/base/shortage.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

double CollectiveTimeout(double end_after_s) {
  constexpr double kDay = 24 * 3600;
  if (end_after_s == 0) return 7 * kDay;
  return std::clamp(10 * end_after_s, kDay, 7 * kDay);
}

absl::StatusOr<GpuPlace> PlaceOf(const RunOptions& options,
                                 const RankEnvironment& environment) {
  if (environment.gpu.has_value()) return *environment.gpu;
  const auto gpus = ListVisibleGpus(options.socket);
  if (!gpus.ok()) return AsBadInput(gpus.status());
  SLUICE_ASSIGN_OR_RETURN(
      const auto places,
      ChooseGpus(*gpus, options.gpus, environment.local_world_size,
                 /*spread=*/environment.local_world_size == 1));
  return places[environment.local_rank];
}

// Opens the session and memory of a rank on its GPU; leases nothing yet. --host
// limits all local ranks together, each by its share. InvalidArgument,
// NotFound: mistakes that the user can fix.
absl::StatusOr<std::unique_ptr<runtime::RankMemory>> OpenMemory(
    const RunOptions& options, const RankEnvironment& environment) {
  SLUICE_ASSIGN_OR_RETURN(const GpuPlace place, PlaceOf(options, environment));
  const DeviceIndex gpu(static_cast<uint64_t>(place.gpu));
  auto opened = client::Session::Open(
      {.socket = options.socket,
       .job = options.job,
       .rank = Rank(static_cast<uint64_t>(environment.rank)),
       .world_size = environment.world_size,
       .local_ranks = environment.local_world_size,
       .gpu = gpu,
       .lease_wait = absl::Seconds(options.wait)});
  if (!opened.ok()) return AsBadInput(opened.status());
  const client::NodeLimits limits = (*opened)->limits();
  if (!options.driver.empty() && options.driver != limits.driver) {
    return BadInput(
        "--device {}: the GPUs of this daemon are of its driver \"{}\": name "
        "another daemon by --socket, or leave --device out",
        options.driver, limits.driver);
  }
  // NCCL's own error names neither rank nor GPU.
  if (!IsSimulated(limits.driver) && place.ranks > 1) {
    return BadInput(
        "{} ranks of this run are on GPU {}, and NCCL takes one on each GPU: "
        "start as many --ranks as there are GPUs, or name one GPU for each "
        "rank by --gpu",
        place.ranks, place.gpu);
  }
  // Kernel launches from another CPU socket arrive late, and that socket's
  // caches are far from the pages that the GPU copies.
  if (!IsSimulated(limits.driver)) StayOn(CoresOfSocket(limits.numa));
  runtime::RankMemory::Options memory{
      .session = *std::move(opened),
      .gpu = gpu,
      .hbm = options.hbm,
      .ranks_on_gpu = place.ranks,
      .numa_ranks = place.numa_ranks,
      .attention = options.attention,
      // A profile measures the dtype that a GPU trains in.
      .dtype =
          options.command == Command::kProfile ? Dtype::kBf16 : options.dtype};
  if (options.host.count() > 0) {
    const int ranks = environment.local_world_size;
    memory.host_limit = options.host / ranks;
    memory.beyond_limit = [ranks](Bytes needed) {
      return fmt::format("give --host {}, or shorten --seq-len",
                         ExactBytes(RoundUp(needed, MiB(1)) * ranks));
    };
  }
  auto opened_memory = runtime::RankMemory::Open(std::move(memory));
  if (opened_memory.status().code() == absl::StatusCode::kUnimplemented) {
    return BadInput(std::string(opened_memory.status().message()));
  }
  if (!opened_memory.ok()) return WithAdvice(opened_memory.status());
  return opened_memory;
}

// Tells the rank's watch when collectives begin and end, so that the watchdog
// can distinguish a waiting rank from the rank that it waits for. Does not
// report collectives of tensors on other devices than `device`: `real` passes
// them to another WatchedCollectives.
class WatchedCollectives final : public runtime::Collectives {
 public:
  // `watch` outlives this.
  WatchedCollectives(std::unique_ptr<runtime::Collectives> real,
                     RankWatch* watch, at::DeviceType device)
      : real_(std::move(real)), watch_(watch), device_(device) {}

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  absl::Status AllToAll(const at::Tensor& receive,
                        const std::vector<int64_t>& receive_counts,
                        const at::Tensor& send,
                        const std::vector<int64_t>& send_counts) override {
    return Watch("all-to-all", send, &Collectives::AllToAll, receive,
                 receive_counts, send, send_counts);
  }
  absl::Status SumAll(at::Tensor& tensor) override {
    return Watch("sum over ranks", tensor, &Collectives::SumAll, tensor);
  }
  absl::Status SumTo(at::Tensor& tensor, int root) override {
    return Watch("sum to one rank", tensor, &Collectives::SumTo, tensor, root);
  }
  absl::Status Broadcast(at::Tensor& tensor, int root) override {
    return Watch("broadcast", tensor, &Collectives::Broadcast, tensor, root);
  }
  absl::Status BeginSumScatter(at::Tensor& tensor) override {
    return Watch("reduce-scatter", tensor, &Collectives::BeginSumScatter,
                 tensor);
  }
  absl::Status BeginGather(at::Tensor& tensor) override {
    return Watch("all-gather", tensor, &Collectives::BeginGather, tensor);
  }
  absl::Status AwaitBegun() override { return real_->AwaitBegun(); }
  absl::Status Barrier() override {
    return Watch("barrier", at::Tensor(), &Collectives::Barrier);
  }
  absl::Status Check() override { return real_->Check(); }
  void Abort(const std::string& why) override { real_->Abort(why); }

 private:
  // If `of` is undefined, the operation runs on the CPU.
  absl::Status Watch(const char* what, const at::Tensor& of, auto call,
                     auto&... arguments) {
    const at::DeviceType type = of.defined() ? of.device().type() : at::kCPU;
    const bool watched = type == device_;
    if (watched) watch_->CollectiveBegan(what);
    const absl::Status status = (*real_.*call)(arguments...);
    if (watched) watch_->CollectiveEnded();
    return status;
  }

  const std::unique_ptr<runtime::Collectives> real_;
  RankWatch* const watch_;
  const at::DeviceType device_;
};

class RankRun {
 public:
  RankRun(const RunOptions& options, const RankEnvironment& environment)
      : options_(options),
        environment_(environment),
        progress_(WatchOptions()),
        watch_([this](const absl::Status& why) { GiveUp(why); }, RequestStop,
               [this](const std::string& reason) {
                 progress_.DaemonGone(reason);
               }) {
    report_.method = Name(options.method);
    report_.seq_len = options.seq_len;
    report_.ranks = environment.world_size;
  }

  int Run() {
    // Only train checks for a stop at a step's end, and only train saves.
    if (options_.command == Command::kTrain) InstallStopSignals();
    const absl::Status worked =
        runtime::CatchStatus(fmt::format("rank {}", environment_.rank),
                             [this]() -> absl::Status { return Work(); });
    const absl::Status status = watch_.Explain(
        WithAdvice(worked, options_.method), report_.interrupted);
    if (!status.ok() && !IsCausedByPeer(status) && line_ != nullptr) {
      line_->Tell(fmt::format("rank {} ({})", environment_.rank,
                              std::string(status.message())));
    }
    // If a watch was faster, it writes the result and ends the process.
    while (telling_.exchange(true)) pause();
    progress_.console().Close();
    const bool compared = !check_.worst_parameter.empty();  // true on rank 0
    if (compared && !options_.json) std::fputs(ToText(check_).c_str(), stdout);
    if (status.ok() && environment_.rank == 0) {
      std::fputs(machine_.c_str(), stdout);
      if (options_.probe && !options_.json) {
        std::puts(
            fmt::format(
                "fits: {} of {} of GPU memory per rank, {} of host memory",
                FormatBytes(report_.peak_hbm), FormatBytes(report_.hbm_per_gpu),
                FormatBytes(report_.host))
                .c_str());
      }
    }
    const std::string report = options_.command == Command::kCheck
                                   ? ToJson(check_)
                                   : ToJson(report_, status);
    Tell(status, report, report_.interrupted);
    std::fflush(nullptr);
    // Joining threads that wait for lost peers could take forever.
    if (!status.ok()) _exit(ExitCode(status));
    // Our launcher reads the result file.
    const bool told = !environment_.result_file.empty();
    return report_.interrupted && !told ? kExitInterrupted : kExitOk;
  }

 private:
  // Returns the HBM of weights, gradients and the optimizer.
  Bytes StatesIn(stream::StatePlace place) const {
    return stream::CountStates(options_.model, options_.dtype,
                               environment_.world_size, environment_.rank,
                               place)
        .hbm();
  }

  absl::Status CheckStates(Bytes memory) const {
    if (options_.command != Command::kTrain) return absl::OkStatus();
    const Bytes states = StatesIn(report_.states);
    if (states <= memory) return absl::OkStatus();
    const bool host = report_.states == stream::StatePlace::kHost;
    const bool helps = !host && options_.method == Method::kSluice &&
                       StatesIn(stream::StatePlace::kHost) <= memory;
    return Advised(ShortOf(
        Shortage::kGpuMemory,
        fmt::format("weights, gradients and {} need {} on each GPU before any "
                    "activation, there are {}: raise --hbm beyond that, take "
                    "{}more --ranks or a smaller model",
                    host ? "the optimizer's buffers" : "optimizer states",
                    FormatBytes(states), FormatBytes(memory),
                    helps ? "--optimizer-states host, " : "")));
  }

  // Chooses one place for the states of all ranks, because the place decides
  // the order of their collectives.
  absl::Status PlaceStates(const StepperContext& context) {
    const Bytes memory = context.memory->size();
    report_.states =
        options_.optimizer_states.value_or(stream::StatePlace::kHbm);
    if (options_.command == Command::kTrain &&
        options_.method == Method::kSluice &&
        !options_.optimizer_states.has_value()) {
      const Bytes states = StatesIn(stream::StatePlace::kHbm);
      const Bytes step = LeastStepBytes(context);
      SLUICE_ASSIGN_OR_RETURN(
          const bool full,
          runtime::AnyRank(context.collectives, states + step > memory));
      if (full) {
        report_.states = stream::StatePlace::kHost;
        report_.states_why = fmt::format(
            "optimizer states in host memory: with weights and gradients {} in "
            "HBM, and a step needs {} of the {} there",
            FormatBytes(states), FormatBytes(step), FormatBytes(memory));
      }
    }
    return runtime::Agree(context.collectives, CheckStates(memory));
  }

  absl::Status WithModel(runtime::RankMemory& memory,
                         runtime::Collectives* collectives) {
    StepperContext context{.options = &options_,
                           .environment = &environment_,
                           .memory = &memory,
                           .collectives = collectives,
                           .watch = &progress_,
                           .stage = &memory.stage()};
    RunOptions ordered = options_;
    if (options_.method == Method::kSluice) {
      SLUICE_RETURN_IF_ERROR(
          ChooseOrder(context, ordered, report_.settings_why));
      context.options = &ordered;
    }
    SLUICE_RETURN_IF_ERROR(PlaceStates(context));
    context.states = report_.states;
    SLUICE_RETURN_IF_ERROR(runtime::Agree(collectives, memory.Arm()));
    FlatModel weights(options_.model, runtime::TorchType(options_.dtype),
                      memory.device());
    SLUICE_RETURN_IF_ERROR(weights.Initialize(
        options_.model, static_cast<uint64_t>(options_.seed), memory.stage()));
    FlatModel gradients(options_.model, at::kFloat, memory.device());
    context.weights = &weights;
    context.gradients = &gradients;
    memory.allocator().Observe(&progress_);
    return options_.command == Command::kCheck
               ? RunCheck(context, watch_, &check_)
               : Train(context, &report_);
  }

  absl::Status WithRanks(runtime::RankMemory& memory,
                         runtime::Collectives* collectives) {
    SLUICE_RETURN_IF_ERROR(
        options_.command == Command::kProfile
            ? MeasureMachine(options_, memory, collectives, &machine_)
            : WithModel(memory, collectives));
    if (collectives == nullptr) return absl::OkStatus();
    // On a GPU the last collectives are issued by now, but may not have ended.
    runtime::AwaitStream(memory.device());
    SLUICE_RETURN_IF_ERROR(collectives->Check());
    // A rank that left before all are done would seem dead to the others.
    const absl::Status together = collectives->Barrier();
    watch_.Disarm();
    if (line_ != nullptr) line_->End();
    return together;
  }

  // `ranks` has the options that connected `host`, which is null for one rank.
  //
  // Aborts collectives after a failure, because a rank that waits in NCCL for a
  // dead peer does not wake, and NCCL's shutdown waits for the other ranks.
  absl::Status WithMemory(runtime::Collectives::Options ranks,
                          runtime::Collectives* host) {
    auto memory = OpenMemory(options_, environment_);
    SLUICE_RETURN_IF_ERROR(runtime::Agree(host, memory.status()));
    std::unique_ptr<runtime::Collectives> gpus;
    if (host != nullptr) {
      ranks.device = (*memory)->device();
      auto connected = runtime::ConnectDevice(ranks, host);
      SLUICE_RETURN_IF_ERROR(runtime::Agree(host, connected.status()));
      if (*connected != nullptr) {
        gpus = std::make_unique<WatchedCollectives>(
            *std::move(connected), &progress_, ranks.device.type());
      }
    }
    runtime::Collectives* const all = gpus != nullptr ? gpus.get() : host;
    client::Session& session = (*memory)->session();
    watch_.Attach(session, [this, all](const std::string& what) {
      if (line_ != nullptr) line_->Tell(what);
      if (all != nullptr) all->Abort(std::string(watch_.why().message()));
    });
    const absl::Status status = runtime::CatchStatus(
        fmt::format("rank {}", environment_.rank), [&]() -> absl::Status {
          if (gpus != nullptr) {  // NCCL allocates its own memory first
            SLUICE_RETURN_IF_ERROR(
                runtime::WarmUpCommunicators(**memory, *gpus));
          }
          SLUICE_RETURN_IF_ERROR(
              runtime::Agree(host, WithAdvice((*memory)->Lease())));
          report_.hbm_per_gpu = (*memory)->size();
          report_.attention = (*memory)->KernelName(
              runtime::TorchType(options_.dtype), options_.model.head_dim());
          return WithRanks(**memory, all);
        });
    if (!status.ok() && all != nullptr)
      all->Abort(std::string(status.message()));
    watch_.Attach(session, {});  // before the collectives are destroyed
    return status;
  }

  absl::Status Work() {
    at::set_num_threads(options_.threads);
    if (environment_.world_size != options_.ranks &&
        options_.command != Command::kProfile) {
      SLUICE_RETURN_IF_ERROR(ValidateRanks(options_, environment_.world_size));
    }
    std::unique_ptr<runtime::Collectives> host;
    const runtime::Collectives::Options c{
        .device = at::kCPU,
        .rank = environment_.rank,
        .world_size = environment_.world_size,
        .master_addr = environment_.master_addr,
        .master_port = environment_.master_port,
        // The timeout ends only delays that the watchdog does not see.
        .timeout_s = CollectiveTimeout(options_.end_after),
        .master_listen_fd = environment_.master_listen_fd};
    if (environment_.world_size > 1) {
      SLUICE_ASSIGN_OR_RETURN(host, runtime::Collectives::Connect(c));
      host = std::make_unique<WatchedCollectives>(std::move(host), &progress_,
                                                  at::kCPU);
      if (environment_.launcher_pid == 0)
        SLUICE_RETURN_IF_ERROR(OpenLine(*host));
      SLUICE_RETURN_IF_ERROR(CompareFlags(host.get()));
    }
    return WithMemory(c, host.get());
  }

  // Refuses ranks that torchrun, srun or a user started with other flags: they
  // would wait for one another, or train something else without a word.
  absl::Status CompareFlags(runtime::Collectives* host) const {
    const std::string& own = options_.shared_flags;
    SLUICE_ASSIGN_OR_RETURN(const std::string first, ShareText(host, own, 0));
    // ShareText cuts a long text.
    if (own.starts_with(first)) return runtime::Agree(host, absl::OkStatus());
    return runtime::Agree(
        host, BadInput("this rank has the flags {}, rank 0 has {}: give all "
                       "ranks the same",
                       own, first));
  }

  // Connects line_. Without our launcher, ranks may be on several nodes.
  absl::Status OpenLine(runtime::Collectives& host) {
    const auto died = [this](const std::string& what) {
      watch_.PeerDied(what);
    };
    absl::StatusOr<std::unique_ptr<PeerLine>> line(nullptr);
    PeerLine::Place place;
    if (environment_.rank == 0) {
      line = PeerLine::Hold(died);
      if (line.ok()) place = (*line)->place();
    }
    at::Tensor told =
        runtime::ViewOf(&place, {2}, at::kLong, at::kCPU);  // port and token
    SLUICE_RETURN_IF_ERROR(host.Broadcast(told, 0));
    if (environment_.rank != 0) {
      line = PeerLine::Reach(environment_.master_addr, place, environment_.rank,
                             died);
    }
    SLUICE_RETURN_IF_ERROR(runtime::Agree(&host, line.status()));
    line_ = *std::move(line);
    return absl::OkStatus();
  }

  RankWatch::Options WatchOptions() {
    const bool trains = options_.command == Command::kTrain;
    RankWatch::Options o{.page_file = environment_.page_file,
                         .speaks = environment_.rank == 0 && trains,
                         .launched = environment_.launcher_pid > 0,
                         .steps = options_.steps,
                         .save = options_.save,
                         .daemon = options_.socket.empty()
                                       ? client::DefaultSocket()
                                       : options_.socket,
                         .limits = {options_.late_after, options_.end_after},
                         .rank = environment_.rank};
    // One rank per node of a training run reports on the node's daemon.
    if (trains && environment_.local_rank == 0) {
      o.daemon_answers = [this] {
        return client::DaemonListens(options_.socket);
      };
    }
    if (!o.launched && environment_.world_size > 1) {
      o.end = [this](const std::string& why) {
        GiveUp(absl::DeadlineExceededError(why));
      };
    }
    return o;
  }

  // Writes the result file; prints the result without a launcher or on failure.
  void Tell(const absl::Status& status, const std::string& report,
            bool interrupted) {
    if (!environment_.result_file.empty() &&
        WriteResult(environment_.result_file, status, report, interrupted)
            .ok()) {
      return;
    }
    if (options_.json && environment_.rank == 0 && !report.empty()) {
      std::puts(report.c_str());
    }
    if (!status.ok()) {
      std::fprintf(stderr, "error: rank %d: %s\n", environment_.rank,
                   std::string(status.message()).c_str());
    }
  }

  // Writes `why` as the result and ends the process. Called by the watches, so
  // it must not read what the main thread writes (the reports).
  void GiveUp(const absl::Status& why) {
    if (telling_.exchange(true)) return;
    progress_.console().Close();
    Tell(why, "", false);
    std::fflush(nullptr);
    _exit(ExitCode(why));
  }

  const RunOptions& options_;
  const RankEnvironment& environment_;
  RunReport report_;
  CheckReport check_;
  std::string machine_;               // MeasureMachine's TOML
  std::atomic<bool> telling_{false};  // set by the thread that tells the result
  RankWatch progress_;
  PeerWatch watch_;
  std::unique_ptr<PeerLine> line_;  // null before OpenLine
};

}  // namespace

int RunRank(const RunOptions& options, const RankEnvironment& environment) {
  return RankRun(options, environment).Run();
}

absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root) {
  if (collectives == nullptr) return text;
  // The text is in host memory, because HBM may have run out.
  const runtime::HostScope host("a text of the ranks");
  constexpr size_t kTextBytes = 1000;
  at::Tensor bytes = at::zeros({kTextBytes}, runtime::OnHost(at::kByte));
  char* const data = static_cast<char*>(bytes.data_ptr());
  std::memcpy(data, text.data(), std::min(text.size(), kTextBytes - 1));
  SLUICE_RETURN_IF_ERROR(collectives->Broadcast(bytes, root));
  return std::string(data);
}

absl::Status ShareFault(runtime::Collectives* collectives,
                        absl::Status& fault) {
  if (collectives == nullptr) return absl::OkStatus();
  const int world = collectives->world_size();
  int first = 0;
  {
    const runtime::HostScope host("faults of the ranks");
    at::Tensor failed = at::zeros({world}, runtime::OnHost(at::kDouble));
    double* const values = failed.data_ptr<double>();
    values[collectives->rank()] = fault.ok() ? 0 : 1;
    SLUICE_RETURN_IF_ERROR(collectives->SumAll(failed));
    while (first < world && values[first] == 0) ++first;
  }
  if (first == world) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      const std::string text,
      ShareText(
          collectives,
          fmt::format("{} {} {}", static_cast<int>(fault.code()),
                      Name(ShortageOf(fault)), std::string(fault.message())),
          first));
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 2));
  fault = absl::InternalError("another rank failed");
  if (parts.size() < 3) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(std::atoi(text.c_str()));
  fault = Mark(absl::Status(code, fmt::format("rank {}: {}", first, parts[2])),
               ShortageNamed(parts[1]).value_or(Shortage::kNone));
  return absl::OkStatus();
}

}  // namespace sluice::train
