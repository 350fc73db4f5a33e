// `top` and `events --follow`: repeat a query until Ctrl-C, or q on a drawn
// screen.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/ctl/commands.h"
#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::ctl {
namespace {

// Control sequences: to the alternate screen without a cursor, and back.
constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l";
constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";
constexpr const char* kHome = "\x1b[H";
constexpr const char* kClearLine = "\x1b[K";
constexpr const char* kClearRest = "\x1b[J";

// While an object exists, SIGINT and SIGTERM end waits instead of the process,
// even if they reach a thread that was started later, such as gRPC's. With
// `q_ends` the key q ends waits too, if standard input is a terminal.
class Interrupts {
 public:
  explicit Interrupts(bool q_ends = false) {
    reads_keys_ = q_ends && tcgetattr(STDIN_FILENO, &terminal_) == 0;
    if (reads_keys_) {
      termios keys = terminal_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC));
  }
  ~Interrupts() {
    if (reads_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Interrupts(const Interrupts&) = delete;

  // Returns false if a signal or q came; true early if another key was pressed.
  bool Wait(absl::Duration time) {
    pollfd readable[] = {{.fd = fd_.get(), .events = POLLIN, .revents = 0},
                         {.fd = reads_keys_ ? STDIN_FILENO : -1,
                          .events = POLLIN,
                          .revents = 0}};
    if (poll(readable, 2, static_cast<int>(absl::ToInt64Milliseconds(time))) ==
        0) {
      return true;
    }
    if (readable[1].revents != 0) {
      char key = 'q';  // a closed terminal counts as q
      return read(STDIN_FILENO, &key, 1) == 1 && key != 'q' && key != 'Q';
    }
    signalfd_siginfo taken;  // consumed, because it would arrive once unblocked
    return read(fd_.get(), &taken, sizeof(taken)) < 0;
  }

 private:
  bool reads_keys_ = false;
  termios terminal_ = {};  // restored at the end
  sigset_t before_ = {};
  UniqueFd fd_;
};

// Draws as much of the text as fits, over the previous picture.
void Show(const std::string& text) {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) {
    size = {.ws_row = 24, .ws_col = 80};
  }
  std::string out = kHome;
  int row = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++row > size.ws_row) break;
    if (row > 1) out += "\r\n";
    out += FirstOf({line.data(), line.size()}, size.ws_col);
    out += kClearLine;
  }
  out += kClearRest;
  std::fputs(out.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

absl::StatusOr<std::string> ShowTop(const Flags& flags) {
  if (flags.json || flags.once || isatty(STDOUT_FILENO) == 0) {
    return ShowStatus(flags);
  }
  NoteWhatIsHidden(flags);
  const auto drawn = [&]() -> absl::StatusOr<std::string> {
    SLUICE_ASSIGN_OR_RETURN(const std::string snapshot, SnapshotJson(flags));
    return RenderStatus(snapshot);
  };
  Interrupts interrupts(/*q_ends=*/true);
  SLUICE_ASSIGN_OR_RETURN(std::string text, drawn());
  std::fputs(kEnter, stdout);
  std::string fault;
  do {
    Show(fault + text);
    auto next = drawn();
    fault = next.ok() ? ""
                      : fmt::format("(no answer: {})\n",
                                    std::string(next.status().message()));
    if (next.ok()) text = *std::move(next);
  } while (interrupts.Wait(absl::Seconds(flags.interval_s)));
  std::fputs(kLeave, stdout);
  return "";
}

absl::StatusOr<std::string> ShowEvents(const Flags& flags) {
  NoteWhatIsHidden(flags);
  std::optional<Interrupts> interrupts;
  if (flags.follow) interrupts.emplace();
  auto snapshot = SnapshotJson(flags);
  SLUICE_RETURN_IF_ERROR(snapshot.status());
  SeenEvents seen;
  while (true) {
    if (snapshot.ok()) {
      SLUICE_ASSIGN_OR_RETURN(
          const std::string lines,
          RenderEventLines(*snapshot, seen, flags.json, absl::Now()));
      std::fputs(lines.c_str(), stdout);
      // A closed pipe ends the command, as it ends any program.
      if (std::fflush(stdout) != 0) return "";
    }
    if (!interrupts || !interrupts->Wait(absl::Seconds(flags.interval_s))) {
      return "";
    }
    snapshot = SnapshotJson(flags);
  }
}

}  // namespace sluice::ctl
