// Executes policy's effects and turns what happens into its events.
//
// How it works. One loop thread owns Core, the session sockets and pidfds.
// It passes each event to Core and executes the effects at once, in order. What
// could take long runs elsewhere and comes back as an event: device calls
// (extents.h), decoding profiles, the plan worker (plan_solver.h). Heartbeat
// and refill of the grant pages have a thread of their own (grant_pages.h).
// README.md has the table of threads and failures.
//
// Thread safety: Stop from any thread, Run from one; administration() is safe.
#pragma once

#include <signal.h>

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
#include "daemon/core/idle_end.h"
#include "daemon/core/policy.h"
#include "daemon/quota/quotas.h"
#include "daemon/service/admin/administration.h"
#include "daemon/service/admin/snapshots.h"
#include "daemon/service/closer.h"
#include "daemon/service/extents.h"
#include "daemon/service/identity/gpu_access.h"
#include "daemon/service/identity/peer.h"
#include "daemon/service/log/event_writer.h"
#include "daemon/service/outside_watch.h"
#include "daemon/service/plan_files.h"
#include "daemon/service/plan_solver.h"
#include "daemon/service/profile_reader.h"
#include "daemon/service/rank_grants.h"
#include "daemon/service/reload/reload.h"
#include "daemon/service/session_listener.h"
#include "daemon/service/sessions.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"

namespace sluice::daemon {

struct ServiceOptions {
  std::string socket;      // path of the session socket
  int socket_mode = 0666;  // users that may attach; budgets bind principals
  NodeConfig node;
  PeerRules peers;
  Shares shares;                     // SharesOf what this process may open
  Share extents;                     // ExtentsOf the same
  device::Driver* driver = nullptr;  // outlives the service
  std::string sim_directory;         // told to clients; empty on cuda
  std::shared_ptr<const UniqueFd> sim_clocks;  // given to ranks; null on cuda
  GpuAccess gpus;                              // which user may use which
  WorkerOptions worker;
  const Clock* clock = nullptr;  // CLOCK_MONOTONIC, outlives the service
  Policy policy;                 // of an earlier daemon
  Starter starter;               // what this process was started with
  UniqueFd listener;  // at `socket`, by TakeHandedListener; empty: make one
  // Says whether a start with the configuration as it is now would work and
  // take over (Reload); empty: SIGHUP is only noted.
  std::vector<std::string> check;
  // Which processes have memory of the node, those with sessions too; called on
  // a thread that may take long. Null where nothing tells (cuda).
  std::function<std::vector<HolderSnapshot>()> find_holders;
  // Where metrics are served; called on the loop's thread. Null: nowhere.
  std::function<TcpListener()> http;
  // How long after its last rank it ends by itself.
  std::optional<absl::Duration> end_after_idle;
  // What was left as Handover::kHttp is served on.
  bool http_goes_on = false;
  int deaths = -1;  // DeathRecord's, kept for the next daemon; -1: none
  // Writes the policy to a file; called from administrators' threads, one at a
  // time. DataLoss: it was written, but a power cut may undo that. Null: what
  // administrators set ends with the daemon.
  std::function<absl::Status(const Policy&)> write_policy;
  // A snapshot as the JSON that `Query` answers.
  std::function<std::string(const Snapshot&)> render;
};

class Service {
 public:
  // AlreadyExists: another daemon serves that socket.
  static absl::StatusOr<std::unique_ptr<Service>> Start(ServiceOptions options);
  ~Service();

  // Before Run: answers what ranks asked while there was no daemon, for a few
  // milliseconds at most.
  void AnswerWhoWaited();
  // Serves until a signal that ends it (runtime/signals.h), which the caller
  // has blocked.
  void Run();
  // After Run: ends the threads that the loop must not wait for. False: one
  // is still in a device call, or decodes, after `patience`; then the process
  // may only end at once, after RemoveSocket.
  bool Finish(absl::Duration patience);
  void RemoveSocket();
  // Whether what ranks hold is left to another daemon.
  bool hands_over() const { return leaving_; }
  // The listening socket of metrics, for the next daemon. From any thread.
  void KeepHttp(int fd);
  // Reports readiness to the starter: the daemon serves.
  void SayReady();

  // What administrators and metrics ask it; from Start to destruction.
  Administration& administration() { return *administration_; }

 private:
  explicit Service(ServiceOptions options);
  absl::Status Prepare();
  void MakeSessions();
  // The threads and processes that do for the loop what takes long.
  void MakeParts();

  // What an earlier daemon left.
  // True: what the earlier daemon knew goes on; false: it left no state. An
  // error leaves everything as it was, for another daemon.
  absl::StatusOr<bool> TakeOver();
  absl::Status Adopt(CoreState saved);
  absl::Status AdoptExtents(const CoreState& saved);
  // An error: something of the session is missing, and it ends.
  absl::Status AdoptRank(const Session& session);
  // OK if the store has room for another rank of the user beside all extents
  // that there may be. A rank that could not be kept would end saving for all:
  // the next daemon would begin anew.
  absl::Status MayBeKept(const Principal& who) const;

  // Connections, requests and ends of sessions, as events of the core.
  absl::Status Connected(UniqueFd& socket);
  void OnMessage(SessionId id, wire::Message& message);
  // Judges what policy cannot: whether there is room for another rank, and
  // which GPUs the peer may use (`shown`: descriptors of their device nodes).
  absl::Status MayAsk(SessionId id, Request& request,
                      std::span<const UniqueFd> shown);
  void OnGone(SessionId id);
  // Adds the peers of its job with processes that have ended too.
  void AddGonePeers(const Session& session,
                    std::vector<Core::Gone>& gone) const;
  void Expire();
  absl::Time NextDeadline();
  void OnSignal();
  // What is left to the next daemon. kForRanks (SIGTERM): what others hold, if
  // a rank is attached; kForAll (SIGHUP): the same in any case; kOfService:
  // nothing, and ranks are told.
  enum class Ending { kForRanks, kForAll, kOfService };
  void End(Ending how);
  void OnReload();
  void EndForReload(const absl::Status& checked);

  // The answer comes when a snapshot was taken and rendered.
  void AnswerQuery(SessionId id, RequestId request, PlanId plan);
  Outgoing SnapshotPacket(RequestId request, PlanId plan,
                          const absl::StatusOr<Snapshots::Answer>& answer);
  Snapshot TakeSnapshot(const Snapshots::View& view);
  // Processes without a session that have what does not come back.
  void AddHolders(const Snapshots::View& view, Snapshot& snapshot);

  // Effects.
  void Execute(Effects effects);
  void Do(MakeExtent& effect);
  void Do(AskHolders& effect);
  void Do(SendReply& effect);
  void Do(SendNotice& effect);
  void Do(CloseSocket& effect);
  void Do(Forget& effect);
  void Do(KillProcess& effect);
  void Do(AttachGrants& effect);
  void Do(ReadProfile& effect);
  // Memory did not come back: finds the processes that have it, at most once
  // in a while.
  void LookForHolders();
  // What ranks have copied by now; before what ends a session, or reads.
  void ReadCopies();
  void SendGranted(SessionId session, RequestId request,
                   const GrantedReply& granted);
  // Converts any reply but a lease or the state.
  Outgoing ToPacket(SessionId session, RequestId request, const Reply& reply);
  Outgoing WelcomePacket(SessionId session, const WelcomeReply& welcome);

  ServiceOptions options_;
  std::unique_ptr<Loop> loop_;
  Closer closer_;
  std::unique_ptr<SessionListener> listener_;
  UniqueFd signals_;
  // Half of what the starter's watchdog waits: told by the loop itself, so a
  // loop that stands still is killed, and the next daemon takes over.
  absl::Duration heartbeat_;
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  // When it is looked whether the machine needs what is idle here.
  absl::Time memory_at_ = absl::InfinitePast();
  // While it ends: when it stops waiting for answers.
  absl::Time end_at_ = absl::InfiniteFuture();
  std::optional<IdleEnd> idle_end_;  // none: it ends when it is told to
  Core core_;
  Quotas quotas_;
  std::vector<HolderSnapshot> holders_;  // as they were found last
  bool looking_for_holders_ = false;
  absl::Time look_for_holders_at_ = absl::InfinitePast();  // not before
  std::map<SessionId, GpuAccess::Gpus> gpus_;              // that ranks showed
  std::unique_ptr<Sessions> sessions_;
  // Profiles until policy has seen them.
  std::map<std::pair<SessionId, RequestId>, UniqueFd> profiles_;
  PlanFiles plan_files_;
  // Queries that wait for their answer, of each session with any.
  std::map<SessionId, int> queries_;
  std::unique_ptr<RankGrants> grants_;
  uint64_t next_session_ = 1;
  int executing_ = 0;  // how deep: an effect may bring about others
  EventWriter events_;
  std::unique_ptr<Handover> handover_;
  // What it holds is left to the next daemon: it ended that way, or its start
  // failed before it served what an earlier one left.
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
