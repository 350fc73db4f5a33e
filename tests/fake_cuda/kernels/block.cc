#include "tests/fake_cuda/kernels/block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace sluice::fake_cuda {
namespace {

constexpr size_t kStack = size_t{64} << 10;

// Returns the stack of a block's thread `index`. The CPU thread's next kernel
// reuses the stack without clearing it: a kernel touches a page or two of it,
// and faulting in all pages would take most of a test's time.
char* Stack(size_t index) {
  thread_local std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= index) {
    stacks.push_back(std::make_unique_for_overwrite<char[]>(kStack));
  }
  return stacks[index].get();
}

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };

// A fiber's context is made once, and then left and entered by _setjmp and
// _longjmp, which, unlike swapcontext, make no system call.
struct Fiber {
  ucontext_t first = {};
  jmp_buf place = {};
  bool entered = false;
  State state = State::kDone;
  Index3 thread;
};

class Scheduler {
 public:
  Scheduler(const Grid& grid, const std::function<void()>& body);
  ~Scheduler();
  void Run();

  void Yield(State state);
  unsigned current() const { return current_; }
  uint64_t& exchange(unsigned lane) {
    return exchange_[current_ / kWarp * kWarp + lane];
  }
  const Position& position() const { return position_; }

 private:
  static void Main();
  void RunBlock();
  void Resume(unsigned fiber);
  bool Release(unsigned begin, unsigned end, State waiting);
  void OpenBarriers();

  const Grid grid_;
  const std::function<void()>& body_;
  std::vector<Fiber> fibers_;
  std::vector<uint64_t> exchange_;
  unsigned current_ = 0;
  jmp_buf scheduler_ = {};
  Position position_;
};

thread_local Scheduler* running = nullptr;

Scheduler::Scheduler(const Grid& grid, const std::function<void()>& body)
    : grid_(grid),
      body_(body),
      fibers_(size_t{grid.threads[0]} * grid.threads[1] * grid.threads[2]),
      exchange_((fibers_.size() + kWarp - 1) / kWarp * kWarp) {
  running = this;
  position_.threads = {grid.threads[0], grid.threads[1], grid.threads[2]};
  position_.blocks = {grid.blocks[0], grid.blocks[1], grid.blocks[2]};
  unsigned at = 0;
  for (Fiber& fiber : fibers_) {
    fiber.thread = {at % grid.threads[0],
                    at / grid.threads[0] % grid.threads[1],
                    at / grid.threads[0] / grid.threads[1]};
    ++at;
  }
}

Scheduler::~Scheduler() { running = nullptr; }

// The main function of a fiber, which runs a thread of each block in turn.
void Scheduler::Main() {
  for (;;) {
    running->body_();
    running->Yield(State::kDone);
  }
}

void Scheduler::Yield(State state) {
  Fiber& fiber = fibers_[current_];
  fiber.state = state;
  if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
}

void Scheduler::Resume(unsigned index) {
  Fiber& fiber = fibers_[index];
  current_ = index;
  position_.thread = fiber.thread;
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.entered) _longjmp(fiber.place, 1);
  fiber.entered = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = Stack(index);
  fiber.first.uc_stack.ss_size = kStack;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, &Scheduler::Main, 0);
  setcontext(&fiber.first);
}

// If all fibers of [begin, end) are in the state `waiting`, makes them ready
// and returns true.
bool Scheduler::Release(unsigned begin, unsigned end, State waiting) {
  const auto first = fibers_.begin() + begin, last = fibers_.begin() + end;
  if (!std::all_of(first, last,
                   [&](const Fiber& f) { return f.state == waiting; })) {
    return false;
  }
  for (auto it = first; it != last; ++it) it->state = State::kReady;
  return true;
}

void Scheduler::OpenBarriers() {
  const auto count = static_cast<unsigned>(fibers_.size());
  bool opened = Release(0, count, State::kAtBlockBarrier);
  for (unsigned begin = 0; begin < count; begin += kWarp) {
    opened |=
        Release(begin, std::min(begin + kWarp, count), State::kAtWarpBarrier);
  }
  if (!opened) {
    throw std::runtime_error("a barrier is not reached by all of its threads");
  }
}

void Scheduler::RunBlock() {
  std::vector<unsigned> order(fibers_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(),
               std::minstd_rand(position_.block.x + 1));
  for (Fiber& fiber : fibers_) fiber.state = State::kReady;
  for (;;) {
    for (const unsigned fiber : order) {
      if (fibers_[fiber].state == State::kReady) Resume(fiber);
    }
    if (std::all_of(fibers_.begin(), fibers_.end(),
                    [](const Fiber& f) { return f.state == State::kDone; })) {
      return;
    }
    OpenBarriers();
  }
}

void Scheduler::Run() {
  Index3& block = position_.block;
  for (block.z = 0; block.z < grid_.blocks[2]; ++block.z) {
    for (block.y = 0; block.y < grid_.blocks[1]; ++block.y) {
      for (block.x = 0; block.x < grid_.blocks[0]; ++block.x) RunBlock();
    }
  }
}

}  // namespace

const Position& Here() { return running->position(); }
void RunGrid(const Grid& grid, const std::function<void()>& body) {
  Scheduler(grid, body).Run();
}
void SyncWarp() { running->Yield(State::kAtWarpBarrier); }
void SyncBlock() { running->Yield(State::kAtBlockBarrier); }
uint64_t& Exchange(unsigned lane) { return running->exchange(lane); }
unsigned Lane() { return running->current() % kWarp; }

}  // namespace sluice::fake_cuda
