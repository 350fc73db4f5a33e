#include "tests/fake_cuda/nccl/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"
#include "tests/fake_cuda/nccl/options.h"
#include "tests/fake_cuda/of_thread.h"

namespace sluice::fake_nccl {
namespace {

// All communicators of this process.
struct World {
  Mutex mutex;
  std::vector<Communicator*> live ABSL_GUARDED_BY(mutex);
  std::map<int, Sequence> sequences ABSL_GUARDED_BY(mutex);  // by GPU
};
World& TheWorld() {
  static auto* const world = new World;
  return *world;
}

struct Told {
  std::string text;
};

std::string& LastText() { return fake_cuda::OfThread<Told>().text; }

Result Tell(Result result, const std::string& why) {
  LastText() = why;
  return result;
}

std::vector<What> WhatsOf(const std::vector<Issue>& group) {
  std::vector<What> whats;
  for (const Issue& issue : group) whats.push_back(issue.what);
  return whats;
}

}  // namespace

Result Refuse(Result result, const std::string& why) {
  fake_cuda::fake_cuda_find("nccl: " + why);
  return Tell(result, why);
}

const char* LastError() { return LastText().c_str(); }

// The part of a communicator that its operations use; it outlives the handle.
struct Communicator::Operations {
  explicit Operations(int device) : device(device) {}

  const int device;
  Mutex mutex;
  CondVar changed;
  bool aborted ABSL_GUARDED_BY(mutex) = false;
  bool running ABSL_GUARDED_BY(mutex) = false;
  uint64_t issued ABSL_GUARDED_BY(mutex) = 0;
  uint64_t ended ABSL_GUARDED_BY(mutex) = 0;

  bool Stopped() {
    if (fake_cuda::fake_cuda_gone(device)) return true;
    const MutexLock lock(mutex);
    return aborted;
  }
  // Waits until all earlier operations have ended. Returns false if the
  // operation must not run.
  bool Begin(const Board& board, uint64_t ticket);
  void End(uint64_t ticket);
};

bool Communicator::Operations::Begin(const Board& board, uint64_t ticket) {
  for (;;) {
    if (Stopped() || board.failure() != kSuccess) return false;
    const MutexLock lock(mutex);
    if (ended == ticket && !aborted) return running = true;
    const auto soon =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    changed.WaitUntil(mutex, soon);
  }
}

void Communicator::Operations::End(uint64_t ticket) {
  const MutexLock lock(mutex);
  running = false;
  ended = std::max(ended, ticket + 1);
  changed.NotifyAll();
}

Communicator::Communicator(std::shared_ptr<Board> board, int rank, int device,
                           void* buffers)
    : board_(std::move(board)),
      operations_(std::make_shared<Operations>(device)),
      rank_(rank),
      device_(device),
      buffers_(buffers) {}

Communicator::~Communicator() { fake_cuda::fake_cuda_let_go(buffers_); }

Result Communicator::Join(int ranks, const UniqueId& id, int rank,
                          Communicator** made) {
  if (made == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
    return Refuse(kInvalidArgument,
                  fmt::format("no rank {} in {} ranks", rank, ranks));
  }
  if (ranks > kMaxRanks) {
    return Refuse(
        kInvalidArgument,
        fmt::format("{} ranks: the fake has at most {}", ranks, kMaxRanks));
  }
  const int device = fake_cuda::fake_cuda_current_device();
  if (device < 0) return Refuse(kInvalidUsage, "no context is current");
  const long kib = fake_cuda::fake_cuda_setting("nccl_kib");
  void* const buffers = kib > 0 ? fake_cuda::fake_cuda_hold(
                                      device, static_cast<size_t>(kib) * 1024)
                                : nullptr;
  if (kib > 0 && buffers == nullptr) {
    return Tell(kUnhandledCudaError, "not enough GPU memory for the buffers");
  }
  Result failure = kSuccess;
  std::string why;
  auto board = Board::Join(id, ranks, rank, device, failure, why);
  if (board == nullptr) {
    fake_cuda::fake_cuda_let_go(buffers);
    // The end of another rank is no finding.
    return failure == kInvalidUsage ? Refuse(failure, why) : Tell(failure, why);
  }
  auto* const communicator = new Communicator(board, rank, device, buffers);
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  if (!world.sequences[device].Add(communicator->hold())) {
    delete communicator;
    return Refuse(kInternalError,
                  fmt::format("more than {} communicators on GPU {}",
                              kMaxCommunicators, device));
  }
  world.live.push_back(communicator);
  *made = communicator;
  return kSuccess;
}

bool Communicator::IsLive(const Communicator* communicator) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  return std::count(world.live.begin(), world.live.end(), communicator) > 0;
}

void Communicator::Release(Communicator* communicator) {
  {
    World& world = TheWorld();
    const MutexLock lock(world.mutex);
    std::erase(world.live, communicator);
    world.sequences[communicator->device_].Remove(communicator->hold());
  }
  delete communicator;
}

Result Communicator::Failed() const {
  return Tell(board_->failure(), board_->why());
}

std::string Communicator::Check(const std::vector<Issue>& group) const {
  const int current = fake_cuda::fake_cuda_current_device();
  if (current != device_) {
    return fmt::format("GPU {} is current, but the communicator is on GPU {}",
                       current, device_);
  }
  for (const Issue& issue : group) {
    std::string wrong = CheckArguments(issue, place());
    if (!wrong.empty()) return wrong;
  }
  return CheckApart(group, place());
}

void Communicator::AwaitOthers(const std::vector<Issue>& group) const {
  const auto full = [&] {
    return std::any_of(group.begin(), group.end(), [&](const Issue& issue) {
      return IsFull(hold(), issue.what);
    });
  };
  for (;;) {
    const uint32_t seen = board_->Changes();
    if (!full() || board_->failure() != kSuccess) return;
    board_->WaitForChange(seen);
    board_->LookForDeaths();
  }
}

std::string Communicator::Publish(const std::vector<Issue>& group) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  std::string wrong = world.sequences[device_].Publish(hold(), WhatsOf(group));
  if (wrong.empty()) return wrong;
  // The GPU's other communicators fail, too: their operations would hang.
  for (Communicator* const one : world.live) {
    if (one->device_ == device_) one->board_->Fail(kInvalidUsage, wrong);
  }
  return wrong;
}

Result Communicator::Enqueue(const std::vector<Issue>& group, Stream stream) {
  std::string wrong = Check(group);
  if (!wrong.empty()) return Refuse(kInvalidArgument, wrong);
  AwaitOthers(group);
  if (board_->failure() != kSuccess) return Failed();
  wrong = Publish(group);
  if (!wrong.empty()) return Refuse(kInvalidUsage, wrong);
  board_->Changed();
  return Launch(group, stream);
}

Result Communicator::Launch(const std::vector<Issue>& group, Stream stream) {
  std::vector<fake_cuda::Access> accesses;
  for (const Issue& issue : group) {
    const Buffers buffers = BuffersOf(issue, place());
    accesses.push_back(buffers.read);
    accesses.push_back(buffers.written);
  }
  uint64_t ticket = 0;
  {
    const MutexLock lock(operations_->mutex);
    ticket = operations_->issued++;
  }
  const auto work = [board = board_, operations = operations_, ticket,
                     place = place(), group](const fake_cuda::Views& views) {
    if (operations->Begin(*board, ticket)) {
      Perform(*board, group, place, views,
              [&] { return operations->Stopped(); });
    }
    operations->End(ticket);
  };
  const std::string name =
      group.size() == 1 ? Describe(group[0].what)
                        : fmt::format("{} and {} more", Describe(group[0].what),
                                      group.size() - 1);
  const int error = fake_cuda::fake_cuda_run(stream, name, accesses, work);
  if (error == 0) return kSuccess;
  operations_->End(ticket);
  return Tell(kUnhandledCudaError,
              fmt::format("{}: CUDA's error {}", name, error));
}

Result Communicator::AsyncError() {
  board_->LookForDeaths();
  return Failed();
}

Result Communicator::Finalize() {
  for (;;) {
    if (board_->failure() != kSuccess || operations_->Stopped()) break;
    const MutexLock lock(operations_->mutex);
    if (operations_->ended == operations_->issued) break;
    const auto soon =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    operations_->changed.WaitUntil(operations_->mutex, soon);
  }
  board_->shared().members[rank_].state = MemberState::kLeft;
  board_->Changed();
  return Failed();
}

void Communicator::Abort() {
  board_->shared().members[rank_].state = MemberState::kAborted;
  const MutexLock lock(operations_->mutex);
  if (!AbortsAreFine()) {
    fake_cuda::fake_cuda_find(fmt::format(
        "nccl: rank {} aborts its communicator, where {} of {} operations have "
        "not ended, and SLUICE_FAKE_NCCL=aborts=0 allows no abort",
        rank_, operations_->issued - operations_->ended, operations_->issued));
  }
  operations_->aborted = true;
  board_->Changed();
  while (operations_->running) operations_->changed.Wait(operations_->mutex);
}

}  // namespace sluice::fake_nccl
