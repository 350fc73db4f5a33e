// A fake daemon that can do what sluiced never does: answer wrongly, late or
// not at all. Its memory and grant pages are real. (tests/integration/client
// uses the real daemon.)
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/session/session.h"
#include "kernels/device/driver.h"
#include "proto/base/grant_page.h"
#include "proto/base/mutex.h"
#include "proto/wire.h"
#include "tests/support/temp_dir.h"

namespace sluice::client {

// Serves one session. States a GPU pool and a host pool of 8 MiB each, and
// grants extents of 64 KiB.
class ScriptedDaemon {
 public:
  // Called with each request before the usual answer. If it returns true, there
  // is no usual answer. Runs on the serving thread.
  using Script = std::function<bool(const wire::Message&)>;

  ScriptedDaemon();
  ~ScriptedDaemon();

  void SetScript(Script script);
  SessionOptions options() const;
  GrantLimits& limits() { return *limits_; }
  GrantUse& use() { return *use_; }
  void Beat();

  // These send to the client, from any thread, once the client has connected.
  void Reply(uint64_t id, const wire::Reply& reply,
             const std::vector<int>& fds = {});
  void ReplyError(uint64_t id, absl::StatusCode code, const std::string& text);
  void SendEvent(const wire::Event& event, const std::vector<int>& fds = {});
  void Grant(const wire::Message& request);
  void Hang();  // closes the session
  // Later packets have the generation of a daemon that took over the socket.
  void TakeOver() { ++generation_; }

  // Returns the number of requests of a kind received so far.
  int count(wire::Request::BodyCase kind) const;

 private:
  void Run();
  void Answer(const wire::Message& message);
  void Welcome(uint64_t id);

  testing::TempDir directory_;
  std::unique_ptr<device::Driver> driver_;
  std::vector<device::Memory> memory_;
  UniqueFd limits_fd_, use_fd_, listener_, peer_;
  GrantLimits* limits_;
  GrantUse* use_;
  std::atomic<uint64_t> generation_{1};
  mutable Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  std::vector<wire::Request::BodyCase> seen_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace sluice::client
