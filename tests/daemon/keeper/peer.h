// A client of storing-daemon, for tests.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

inline absl::Time Now() { return MonotonicClock().Now(); }
inline void Sleep(absl::Duration time) {
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(time));
}

// Connects to `path`, and retries for 30 s until it accepts connections.
inline UniqueFd Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const absl::Time deadline = Now() + absl::Seconds(30);
  while (Now() < deadline) {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                sizeof(address)) == 0) {
      const timeval limit = {30, 0};
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
      return fd;
    }
    Sleep(absl::Milliseconds(2));
  }
  ADD_FAILURE() << "no process listens at " << path;
  return UniqueFd();
}

class Peer {
 public:
  explicit Peer(const std::string& path) : socket_(Connect(path)) {
    greeting_ = Receive();
  }

  void Send(const std::string& question) {
    ++tag_;
    const std::string text = Tag() + question;
    EXPECT_EQ(send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Returns the answer to the last question; skips answers that come twice.
  std::string Answer() {
    while (true) {
      const std::string text = Receive();
      if (text.empty() || text.starts_with(Tag())) {
        return text.substr(std::min(Tag().size(), text.size()));
      }
    }
  }
  std::string Ask(const std::string& question) {
    Send(question);
    return Answer();
  }
  const std::string& greeting() const { return greeting_; }

 private:
  std::string Tag() const { return std::to_string(tag_) + " "; }
  // Returns the next message, or "" at the other end's close or after 30 s.
  std::string Receive() {
    std::array<char, 512> buffer;
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    EXPECT_GT(got, 0) << (got == 0 ? "an end" : std::strerror(errno));
    return got > 0 ? std::string(buffer.data(), static_cast<size_t>(got)) : "";
  }

  UniqueFd socket_;
  int tag_ = 0;
  std::string greeting_;
};

}  // namespace sluice::daemon
