// Executes policy's effects, and reports to policy as events what happens.
//
// The loop's thread owns Core, the session sockets and pidfds. It passes each
// event to Core and executes the effects at once, in order. Work that may take
// long runs on other threads (README.md has the table), and its outcome comes
// back as an event.
//
// Thread safety: one thread; administration() and KeepHttp on any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/policy.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/admin/administration.h"
#include "daemon/service/admin/snapshots.h"
#include "daemon/service/extents.h"
#include "daemon/service/grant_pages.h"
#include "daemon/service/identity/gpu_access.h"
#include "daemon/service/identity/peer.h"
#include "daemon/service/log/event_writer.h"
#include "daemon/service/outside_watch.h"
#include "daemon/service/plan_solver.h"
#include "daemon/service/profile_reader.h"
#include "daemon/service/reload/reload.h"
#include "daemon/service/session_listener.h"
#include "daemon/service/sessions.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/threads/closer.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"

namespace sluice::daemon {

struct ServiceOptions {
  std::string socket;  // path of the session socket
  NodeConfig node;
  PeerRules peers;
  Shares shares;                     // from SharesOf, for this process
  Share extents;                     // at most ExtentsOf, for this process
  device::Driver* driver = nullptr;  // must outlive the service
  std::string sim_directory;         // sent to clients; empty on cuda
  SharedFd sim_clocks;               // sent to ranks; null on cuda
  GpuAccess gpus;                    // GPUs that each process may use
  WorkerOptions worker;
  const Clock* clock = nullptr;  // CLOCK_MONOTONIC; must outlive the service
  Policy policy;                 // what administrators have set so far
  Starter starter;               // what this process was started with
  UniqueFd listener;
  std::vector<std::string> check;  // for Reload; empty: SIGHUP is only logged
  // Returns all processes that hold memory of the node; called on another
  // thread. Null: the device cannot report them (cuda).
  std::function<std::vector<HolderSnapshot>()> find_holders;
  // The metrics server's address; runs on the loop's thread. Null: no server.
  std::function<TcpListener()> http;
  std::optional<absl::Duration> end_after_idle;
  int deaths = -1;  // the DeathRecord's descriptor, to be kept; -1: none
  // As Administration::Options::write_policy.
  std::function<absl::Status(const Policy&)> write_policy;
  std::function<std::string(const Snapshot&)> render;  // as JSON, for `Query`
};

class Service {
 public:
  // AlreadyExists: another daemon serves that socket.
  static absl::StatusOr<std::unique_ptr<Service>> Start(ServiceOptions options);
  ~Service();

  // Answers requests that came while there was no daemon, for at most 20 ms.
  // Call before Run.
  void AnswerWhoWaited();
  // Serves until a signal or end_after_idle. REQUIRES: BlockSignals.
  void Run();
  // Ends the threads after Run. Returns false if a thread is still in a device
  // call or decodes after `patience`; then the process must call RemoveSocket
  // and end at once.
  bool Finish(absl::Duration patience);
  void RemoveSocket();
  // Returns whether this daemon leaves what ranks hold to the next one.
  bool hands_over() const { return leaving_; }
  void KeepHttp(int fd) { KeepOnce(Handover::kHttp, fd); }
  void SayReady();

  Administration& administration() { return *administration_; }

 private:
  explicit Service(ServiceOptions options);
  absl::Status Prepare();
  void MakeParts();

  // Returns whether an earlier daemon left a state. After an error all that it
  // left is unchanged, for another daemon.
  absl::StatusOr<bool> TakeOver();
  absl::Status Adopt(CoreState saved);
  absl::Status AdoptExtents(const CoreState& saved);
  // After an error, a part of the session is missing, and the session ends.
  absl::Status AdoptRank(const Session& session);
  void KeepOnce(const char* name, int fd);
  // Returns OK if the store has room for another rank of the user, besides all
  // possible extents. A rank that could not be kept would end saving for all:
  // the next daemon would start without state.
  absl::Status MayBeKept(const Principal& who) const;

  absl::Status Connected(UniqueFd& socket);
  void OnMessage(SessionId id, wire::Message& message);
  void Refuse(SessionId id, RequestId request, const absl::Status& why);
  absl::Status Handle(SessionId id, RequestId request, wire::Message& message);
  // Checks what policy cannot: room for another rank, and which GPUs the peer
  // may use. `shown`: the peer's descriptors of device nodes.
  absl::Status MayAsk(SessionId id, Request& request,
                      std::span<const UniqueFd> shown);
  void OnGone(SessionId id);
  void Expire();
  absl::Time NextDeadline();
  absl::Time EndOfIdleness();
  absl::Time now() const { return loop_->now(); }
  void OnSignal();
  // kForRanks (SIGTERM): the state and memory are left to the next daemon if
  // there are sessions of ranks. kForAll (SIGHUP): they are left in any case.
  // kOfService: nothing is left, and ranks get a notice.
  enum class Ending { kForRanks, kForAll, kOfService };
  void End(Ending how);
  void OnReload();
  void EndForReload(const absl::Status& checked);

  void AnswerQuery(SessionId id, RequestId request, PlanId plan);
  absl::StatusOr<Outgoing> SnapshotPacket(
      RequestId request, PlanId plan,
      const absl::StatusOr<Snapshots::Answer>& answer);
  Snapshot TakeSnapshot(const Snapshots::View& view);
  void AddHolders(const Snapshots::View& view, Snapshot& snapshot);

  void Execute(Effects effects);
  void Do(MakeExtent& effect);
  void Do(AskHolders& effect);
  void Do(SendReply& effect);
  void Do(SendNotice& effect);
  void Do(ReadProfile& effect);
  // Returns whether a process without a session may hold memory of the pools.
  bool SomeIsHeld() const;
  void LookForHolders();
  // Called before sessions end and before snapshots.
  void ReadCopies();
  void SendGranted(SessionId session, RequestId request,
                   const GrantedReply& granted);
  absl::Status FillWelcome(SessionId session, const WelcomeReply& welcome,
                           Outgoing& out);

  ServiceOptions options_;
  std::unique_ptr<Loop> loop_;
  Closer closer_;
  std::unique_ptr<SessionListener> listener_;
  UniqueFd signals_;
  // Half of the watchdog timeout. The loop itself sends heartbeats, so a daemon
  // with a hanging loop is killed, and the next one takes over.
  absl::Duration heartbeat_;
  absl::Time heartbeat_at_;
  // The time of the next check whether the machine needs idle memory.
  absl::Time memory_at_ = absl::InfinitePast();
  absl::Time end_at_ = absl::InfiniteFuture();
  std::optional<IdleEnd> idle_end_;  // unset: the service ends only on request
  Quotas quotas_;
  Core core_;
  std::vector<HolderSnapshot> holders_;  // result of the last search
  absl::Time look_for_holders_at_ = absl::InfinitePast();
  std::map<SessionId, GpuAccess::Gpus> gpus_;
  std::unique_ptr<Sessions> sessions_;
  // The memfd of the request that policy is handling; null if the request has
  // none. If policy does not move the memfd, it is closed on another thread:
  // the loop must not free up to 64 MiB of pages.
  UniqueFd* profile_ = nullptr;
  PlanFiles plan_files_;
  std::map<SessionId, int> queries_;  // how many each session waits for
  // Destroyed in reverse order: first parts that post to the loop, then what
  // their tasks use.
  std::unique_ptr<RankGrants> grants_;
  uint64_t next_session_ = 1;
  int executing_ = 0;  // nesting depth, since an effect may cause others
  EventWriter events_;
  std::unique_ptr<Handover> handover_;
  // Whether the kept descriptors stay for the next daemon if this one ends.
  // During the start: whether an earlier daemon left any, because the start may
  // fail. Since End: whether this daemon hands over.
  bool leaving_ = false;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Extents> extents_;
  std::unique_ptr<OutsideWatch> outside_;
  std::unique_ptr<PlanSolver> solver_;
  std::unique_ptr<ProfileReader> profile_reader_;
  std::unique_ptr<TaskThread> codec_;
  std::unique_ptr<Snapshots> snapshots_;
  std::unique_ptr<Administration> administration_;
  std::unique_ptr<Reload> reload_;
};

}  // namespace sluice::daemon
