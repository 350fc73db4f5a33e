#include "daemon/service/log/log.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kLogPatience = absl::Milliseconds(100);

std::atomic<LogLevel> current_level{LogLevel::kInfo};
std::atomic<uint64_t> dropped_lines{0}, suppressed_lines{0};

// Indexed by level; priorities as in syslog(3).
constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
constexpr int kPriorities[] = {3, 4, 6, 7};

// Null: lines go to stderr. Never deleted: threads may log until the end.
std::atomic<const JournalSocket*> journal{nullptr};

struct Entry {
  std::string line;
  std::string for_journal = "";  // empty: no journal is in use
  size_t size() const { return line.size() + for_journal.size(); }
};

Entry EntryOf(LogLevel level, std::string_view text,
              const LogFields& fields = {}) {
  const auto index = static_cast<size_t>(level);
  Entry entry{
      fmt::format("{} {} {}{}\n",
                  absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(),
                                   absl::UTCTimeZone()),
                  kNames[index], text,
                  fields.request.empty() ? "" : " (" + fields.request + ")")};
  if (journal.load() == nullptr) return entry;
  JournalSocket::Fields all = {{"MESSAGE", std::string(text)},
                               {"PRIORITY", std::to_string(kPriorities[index])},
                               {"SYSLOG_IDENTIFIER", "sluiced"}};
  if (!fields.event.empty()) all.emplace_back("SLUICE_EVENT", fields.event);
  if (!fields.request.empty()) {
    all.emplace_back("SLUICE_REQUEST", fields.request);
  }
  if (fields.uid) all.emplace_back("SLUICE_UID", std::to_string(*fields.uid));
  entry.for_journal = JournalSocket::Encode(all);
  return entry;
}

void Write(const Entry& entry) {
  if (!entry.for_journal.empty() && journal.load()->Send(entry.for_journal)) {
    return;
  }
  // The result is ignored: the daemon goes on if stderr is closed.
  [[maybe_unused]] const ssize_t wrote =
      write(STDERR_FILENO, entry.line.data(), entry.line.size());
}

struct Queue {
  Mutex mutex;
  CondVar changed;
  std::deque<Entry> lines ABSL_GUARDED_BY(mutex);
  size_t bytes ABSL_GUARDED_BY(mutex) = 0;  // of `lines`
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  // Read before the thread runs, because lines may be dropped from then on.
  const uint64_t dropped_before = dropped_lines;

  void Put(Entry line) {
    {
      const MutexLock lock(mutex);
      if (bytes + line.size() > LogThread::kMostQueued) {
        ++dropped_lines;
        return;
      }
      bytes += line.size();
      lines.push_back(std::move(line));
    }
    changed.NotifyOne();
  }

  void Work() {
    uint64_t told = dropped_before;
    MutexLock lock(mutex);
    while (!stopping || !lines.empty()) {
      if (lines.empty()) {
        changed.Wait(mutex);
        continue;
      }
      const Entry line = std::move(lines.front());
      lines.pop_front();
      lock.Unlock();
      Write(line);  // blocks while stderr is not read
      if (const uint64_t now = dropped_lines; now != told) {
        Write(EntryOf(LogLevel::kWarning,
                      fmt::format("{} lines were dropped here: stderr was not "
                                  "read",
                                  now - told)));
        told = now;
      }
      lock.Lock();
      bytes -= line.size();
    }
    ended = true;
    changed.NotifyAll();
  }
};

// The current LogThread's queue, or null. Never deleted, as `journal`.
struct Current {
  Mutex mutex;
  std::shared_ptr<Queue> queue ABSL_GUARDED_BY(mutex);

  std::shared_ptr<Queue> Get() {
    const MutexLock lock(mutex);
    return queue;
  }
  std::shared_ptr<Queue> Exchange(std::shared_ptr<Queue> next) {
    const MutexLock lock(mutex);
    return std::exchange(queue, std::move(next));
  }
};
Current& current = *new Current;

}  // namespace

LogThread::LogThread() {
  const auto queue = std::make_shared<Queue>();
  // Detached, because a line that stderr does not take must not delay the end.
  std::thread thread([queue] { queue->Work(); });
  pthread_setname_np(thread.native_handle(), "log");
  thread.detach();
  current.Exchange(queue);
}

LogThread::~LogThread() {
  const auto queue = current.Exchange(nullptr);
  const auto deadline = CondVar::Deadline(kLogPatience);
  const MutexLock lock(queue->mutex);
  queue->stopping = true;
  queue->changed.NotifyAll();
  while (!queue->ended && queue->changed.WaitUntil(queue->mutex, deadline)) {
  }
}

void SetLogLevel(LogLevel level) { current_level = level; }

bool IsLogged(LogLevel level) {
  return level <= current_level.load(std::memory_order_relaxed);
}

void WriteLog(LogLevel level, std::string_view text, const LogFields& fields) {
  if (!IsLogged(level)) return;
  Entry line = EntryOf(level, text, fields);
  if (const auto queue = current.Get()) return queue->Put(std::move(line));
  Write(line);
}

void UseJournal(JournalSocket socket) {
  journal = new JournalSocket(std::move(socket));
}

LogLosses ReadLogLosses() { return {dropped_lines, suppressed_lines}; }

void CountSuppressed(uint64_t lines) { suppressed_lines += lines; }

bool JournalSocket::ReadsStderr(const char* stream) {
  struct stat info;
  if (stream == nullptr || fstat(STDERR_FILENO, &info) != 0) return false;
  return fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

absl::StatusOr<JournalSocket> JournalSocket::Make(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(path + " is too long for a socket");
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a unix socket");
  return JournalSocket(std::move(fd), *address);
}

std::string JournalSocket::Encode(const Fields& fields) {
  std::string entry;
  for (const auto& [name, value] : fields) {
    entry += name;
    if (value.find('\n') == std::string::npos) {
      entry += '=';
    } else {  // preceded by its length, little-endian
      entry += '\n';
      for (int shift = 0; shift < 64; shift += 8) {
        entry += static_cast<char>(uint64_t{value.size()} >> shift & 0xff);
      }
    }
    entry += value;
    entry += '\n';
  }
  return entry;
}

bool JournalSocket::Send(const std::string& entry) const {
  ssize_t sent = 0;
  do {
    sent = sendto(socket_.get(), entry.data(), entry.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&to_), sizeof(to_));
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

}  // namespace sluice::daemon
