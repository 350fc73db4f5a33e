// One connection: a request in, an answer out, then it ends. Internal to
// daemon/metrics.
//
// Thread safety: none needed; each object belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "daemon/metrics/http_request.h"
#include "daemon/metrics/pages.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class HttpConnection {
 public:
  enum class State {
    kReading,  // the request
    kWaiting,  // for its page
    kWriting,  // the answer
    // The answer is written; what still comes is thrown away, because a close
    // with unread bytes would take the answer from the peer.
    kEnding,
    kOver,
  };

  HttpConnection(UniqueFd socket, Audience audience, absl::Time now);

  // Reads what is there and writes what fits.
  void Read(absl::Time now);
  void Write(absl::Time now);
  void Expire(absl::Time now);  // if its deadline has passed
  void PeerGone() { state_ = State::kOver; }
  // Out of room: an answer to a request that is not there yet, and the end.
  void GiveUp(absl::Time now);

  // kWaiting: what for; the round is the caller's to set and look up.
  PageKey key() const { return key_; }
  uint64_t round = 0;
  void Answer(std::shared_ptr<const Page> page, absl::Time now);

  State state() const { return state_; }
  int fd() const { return socket_.get(); }
  absl::Time deadline() const { return deadline_; }

 private:
  void TakeBytes(std::string_view bytes, absl::Time now);
  void Refuse(HttpStatus status, std::string_view why, absl::Time now);
  size_t Unsent() const;

  UniqueFd socket_;
  HttpReader reader_;
  State state_ = State::kReading;
  absl::Time deadline_;
  PageKey key_;
  bool head_only_ = false;
  std::string head_;
  std::shared_ptr<const Page> page_;
  size_t sent_ = 0;
  size_t thrown_away_ = 0;
};

}  // namespace sluice::daemon
