// Tests that saved state survives the process, at whichever store instruction
// the process ended.
#include "daemon/state/state_file.h"

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <random>

#include "proto/base/unique_fd.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
constexpr auto kFull = absl::StatusCode::kResourceExhausted;
constexpr StateFile::Sizes kSmall = {Bytes(100), Bytes(200)};

UniqueFd Memory() { return UniqueFd(memfd_create("state", MFD_CLOEXEC)); }

std::unique_ptr<StateFile> Made(const UniqueFd& fd) {
  auto file = StateFile::Create(fd.get(), kSmall);
  EXPECT_THAT(file, IsOk());
  return *std::move(file);
}

StateFile::Contents Reopened(const UniqueFd& fd) {
  auto file = StateFile::Open(fd.get());
  EXPECT_THAT(file, IsOk());
  return file.ok() ? (*file)->TakeContents() : StateFile::Contents();
}

TEST(StateFile, ANewFileIsEmpty) {
  const UniqueFd fd = Memory();
  Made(fd);
  EXPECT_EQ(Reopened(fd), StateFile::Contents());
}

TEST(StateFile, TheNewestCheckpointAndItsRecordsAreRead) {
  const UniqueFd fd = Memory();
  const auto file = Made(fd);
  EXPECT_THAT(file->Append("before"), IsOk());
  for (const char* state : {"one", "two", "three"}) {
    EXPECT_THAT(file->Checkpoint(state), IsOk());
    EXPECT_EQ(Reopened(fd), (StateFile::Contents{state, {}}));
    EXPECT_THAT(file->Append("a"), IsOk());
    EXPECT_THAT(file->Append(""), IsOk());
    EXPECT_EQ(Reopened(fd), (StateFile::Contents{state, {"a", ""}}));
  }
}

TEST(StateFile, AReopenedFileIsAppendedTo) {
  const UniqueFd fd = Memory();
  EXPECT_THAT(Made(fd)->Append("a"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto file, StateFile::Open(fd.get()));
  EXPECT_THAT(file->Append("b"), IsOk());
  EXPECT_EQ(Reopened(fd), (StateFile::Contents{"", {"a", "b"}}));
}

TEST(StateFile, AWriteThatDoesNotFitChangesNothing) {
  const UniqueFd fd = Memory();
  const auto file = Made(fd);
  EXPECT_THAT(file->Append("a"), IsOk());
  EXPECT_THAT(file->Append(std::string(200, 'x')), StatusIs(kFull));
  EXPECT_THAT(file->Checkpoint(std::string(105, 'x')), StatusIs(kFull));
  EXPECT_EQ(Reopened(fd), (StateFile::Contents{"", {"a"}}));
  EXPECT_THAT(file->Checkpoint(std::string(100, 'x')), IsOk());
  EXPECT_THAT(file->Append(std::string(150, 'x')), IsOk());
}

TEST(StateFile, ACheckpointTakesThePagesThatItNeeds) {
  const UniqueFd fd = Memory();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto file, StateFile::Create(fd.get(), {}));
  const auto taken = [&] {
    struct stat size = {};
    EXPECT_EQ(fstat(fd.get(), &size), 0);
    return size.st_blocks * 512;
  };
  const auto before = taken();
  EXPECT_LT(before, MiB(5).count());
  EXPECT_THAT(file->Checkpoint(std::string(10 << 20, 'x')), IsOk());
  EXPECT_GE(taken(), before + MiB(10).count());
  EXPECT_LT(taken(), before + MiB(11).count());
}

// Bytes in an old record that look like a new record are ignored.
TEST(StateFile, RecordsOfAnOlderCheckpointAreIgnored) {
  const UniqueFd fd = Memory(), twin = Memory();
  const auto file = Made(fd), later = Made(twin);
  EXPECT_THAT(later->Checkpoint(""), IsOk());
  EXPECT_THAT(later->Append("1"), IsOk());
  EXPECT_THAT(later->Append("2"), IsOk());
  // Forges the second record of epoch 2 at the place where a record after
  // "8 bytes " would begin.
  std::string forged(8, 'x');
  forged.resize(48);
  const size_t log = 3 * 8 + 2 * 136;
  ASSERT_EQ(pread(twin.get(), forged.data() + 8, 40, log + 40), 40);
  EXPECT_THAT(file->Append(forged), IsOk());
  EXPECT_THAT(file->Checkpoint(""), IsOk());
  EXPECT_THAT(file->Append("8 bytes "), IsOk());
  EXPECT_EQ(Reopened(fd), (StateFile::Contents{"", {"8 bytes "}}));
}

// Runs `step` in a child process, one instruction at a time, and calls `look`
// after each instruction that changed the content of `fd`: a daemon killed
// there would have left this content.
void LookBehindEachStore(const UniqueFd& fd, const std::function<void()>& step,
                         const std::function<void()>& look) {
  struct stat size = {};
  ASSERT_EQ(fstat(fd.get(), &size), 0);
  const auto bytes = static_cast<size_t>(size.st_size);
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::string seen(static_cast<const char*>(memory), bytes);
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    step();
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    if (std::memcmp(memory, seen.data(), bytes) != 0) {
      std::memcpy(seen.data(), memory, bytes);
      look();
    }
    ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  munmap(memory, bytes);
}

// Each step takes effect completely at one store instruction, and nothing of an
// earlier step is lost.
TEST(StateFile, AnInterruptedWriteCountsWholeOrNotAtAll) {
  using Step = absl::Status (*)(StateFile&);
  const std::vector<Step> steps = {
      [](StateFile& f) { return f.Append("first"); },
      [](StateFile& f) { return f.Append(std::string(40, 'r')); },
      [](StateFile& f) { return f.Checkpoint(std::string(77, 'c')); },
      [](StateFile& f) { return f.Append("after"); },
      [](StateFile& f) { return f.Checkpoint("d"); },
      [](StateFile& f) { return f.Append(std::string(90, 's')); },
      [](StateFile& f) { return f.Checkpoint(std::string(61, 'p')); },
      [](StateFile& f) { return f.Append("last"); },
  };
  const UniqueFd fd = Memory();
  const auto file = Made(fd);
  const UniqueFd whole = Memory();
  const auto undisturbed = Made(whole);
  for (const Step& step : steps) {
    const StateFile::Contents before = Reopened(fd);
    ASSERT_THAT(step(*undisturbed), IsOk());
    const StateFile::Contents after = Reopened(whole);
    int stores = 0;
    bool counts = false;
    LookBehindEachStore(
        fd, [&] { SLUICE_CHECK_OK(step(*file)); },
        [&] {
          const StateFile::Contents now = Reopened(fd);
          counts = counts || now == after;
          EXPECT_EQ(now, counts ? after : before) << &step - steps.data();
          ++stores;
        });
    EXPECT_TRUE(counts);
    EXPECT_GT(stores, 4);
    // Repeats the step in this process, as the child's objects ended with it.
    ASSERT_THAT(step(*file), IsOk());
    EXPECT_EQ(Reopened(fd), after);
  }
}

// Guards against a state that only the store could drop: if the store missed
// the request, the next daemon would use the state.
TEST(StateFile, VoidTakesEffectAtOneStoreInstruction) {
  const UniqueFd fd = Memory();
  const auto file = Made(fd);
  for (const char* state : {"one", "two"}) {
    ASSERT_THAT(file->Checkpoint(state), IsOk());
  }
  ASSERT_THAT(file->Append("record"), IsOk());
  const StateFile::Contents before = Reopened(fd);
  bool given_up = false;
  LookBehindEachStore(
      fd, [&] { file->Void(); },
      [&] {
        const auto opened = StateFile::Open(fd.get());
        given_up = given_up || !opened.ok();
        if (!given_up) {
          EXPECT_EQ((*opened)->TakeContents(), before);
        } else {
          EXPECT_THAT(opened, StatusIs(absl::StatusCode::kNotFound,
                                       HasSubstr("was given up")));
        }
      });
  EXPECT_TRUE(given_up);
}

TEST(StateFile, AVoidedStateIsReadAgainAfterACheckpoint) {
  const UniqueFd fd = Memory();
  const auto file = Made(fd);
  EXPECT_THAT(file->Append("record"), IsOk());
  file->Void();
  EXPECT_THAT(StateFile::Open(fd.get()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(file->Checkpoint("again"), IsOk());
  EXPECT_EQ(Reopened(fd), (StateFile::Contents{"again", {}}));
}

// A file with a flipped bit is refused, unless no reader uses the bit.
TEST(StateFile, DamageIsRefusedAndNeverMisread) {
  const UniqueFd fd = Memory();
  const auto file = Made(fd);
  EXPECT_THAT(file->Checkpoint("checkpoint"), IsOk());
  EXPECT_THAT(file->Append("record"), IsOk());
  const StateFile::Contents known = Reopened(fd);
  const auto size = static_cast<off_t>(lseek(fd.get(), 0, SEEK_END));
  int refused = 0;
  for (off_t bit = 0; bit < 8 * size; ++bit) {
    char byte;
    ASSERT_EQ(pread(fd.get(), &byte, 1, bit / 8), 1);
    const char flipped = static_cast<char>(byte ^ (1 << (bit % 8)));
    ASSERT_EQ(pwrite(fd.get(), &flipped, 1, bit / 8), 1);
    const auto opened = StateFile::Open(fd.get());
    if (opened.ok()) {
      EXPECT_EQ((*opened)->TakeContents(), known) << "bit " << bit;
    } else {
      EXPECT_THAT(opened, StatusIs(kRefused, HasSubstr("damaged")));
      ++refused;
    }
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, bit / 8), 1);
  }
  EXPECT_GT(refused, 8 * 40);
}

// A read behind the file's last page would end the daemon by SIGSEGV.
TEST(StateFile, AFileWithoutRoomForRecordsIsRefused) {
  const UniqueFd fd = Memory();
  const StateFile::Sizes page = {Bytes(100), Bytes(4096 - 24 - 2 * 136 - 32)};
  auto file = StateFile::Create(fd.get(), page);
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Checkpoint("in the first slot"), IsOk());
  ASSERT_EQ(lseek(fd.get(), 0, SEEK_END), 4096);
  EXPECT_EQ(Reopened(fd).checkpoint, "in the first slot");
  const uint64_t sizes[] = {(4096 - 24) / 2, 0};
  ASSERT_EQ(pwrite(fd.get(), sizes, sizeof(sizes), 8), 16);
  EXPECT_THAT(StateFile::Open(fd.get()), StatusIs(kRefused));
}

TEST(StateFile, AFileThatIsNoStateIsRefused) {
  const UniqueFd fd = Memory();
  EXPECT_THAT(StateFile::Open(fd.get()), StatusIs(kRefused));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  EXPECT_THAT(StateFile::Open(fd.get()), StatusIs(kRefused));
}

}  // namespace
}  // namespace sluice::daemon
