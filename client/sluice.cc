// The C ABI over Session, Region and CopyEngine. No exception may cross the
// ABI. The layers below throw only std::bad_alloc.
#include "client/sluice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/copy/ticket_table.h"
#include "client/session/session.h"
#include "planner/stream/attention_kernel.h"
#include "planner/stream/chunk_choice.h"
#include "proto/base/shortage.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"

using sluice::Bytes;
using sluice::client::CopyEngine;
using sluice::client::CopyRequest;
using sluice::client::CopySlack;
using sluice::client::Region;
using sluice::client::Session;
using sluice::client::SessionEvent;
using sluice::client::SessionOptions;
using sluice::client::TicketTable;

struct sluice_session {
  std::unique_ptr<Session> session;
};
struct sluice_region {
  std::unique_ptr<Region> region;
};
struct sluice_engine {
  std::unique_ptr<CopyEngine> engine;
  TicketTable tickets;
  // Slack by direction, from sluice_engine_know_slack; negative if unknown.
  std::array<double, 2> slack_seconds = {-1, -1};
};

namespace {

static_assert(SLUICE_EVENT_PEER_DIED ==
              static_cast<int>(SessionEvent::Kind::kPeerDied));
static_assert(SLUICE_EVENT_EVICTED ==
              static_cast<int>(SessionEvent::Kind::kEvicted));
static_assert(SLUICE_EVENT_SHUTTING_DOWN ==
              static_cast<int>(SessionEvent::Kind::kShuttingDown));
static_assert(SLUICE_EVENT_DISCONNECTED ==
              static_cast<int>(SessionEvent::Kind::kDisconnected));

static_assert(SLUICE_EVENT_PLAN_CHANGED ==
              static_cast<int>(SessionEvent::Kind::kPlanChanged));

// The values are those of absl::StatusCode. Comparing both ends and one value
// between them would show a shift.
static_assert(SLUICE_CANCELLED ==
              static_cast<int>(absl::StatusCode::kCancelled));
static_assert(SLUICE_ALREADY_EXISTS ==
              static_cast<int>(absl::StatusCode::kAlreadyExists));
static_assert(SLUICE_UNAUTHENTICATED ==
              static_cast<int>(absl::StatusCode::kUnauthenticated));

std::string& LastError() {
  thread_local std::string message;
  return message;
}

int Fail(const absl::Status& status) {
  LastError() = std::string(status.message());
  return static_cast<int>(status.code());
}

int Return(const absl::Status& status) {
  return status.ok() ? SLUICE_OK : Fail(status);
}

int BadArgument(const std::string& message) {
  return Fail(absl::InvalidArgumentError(message));
}

// Runs `body` and converts exceptions to a status.
int Guard(const auto& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(sluice::ShortOf(sluice::Shortage::kHostMemory,
                                "out of ordinary memory"));
  } catch (const std::exception& error) {
    return Fail(absl::InternalError(error.what()));
  }
}

// Copies a struct to the caller's, which may have fewer fields.
template <typename T>
int FillVersioned(T value, T* out) {
  if (out == nullptr || out->size < sizeof(out->size)) {
    return BadArgument("set the struct's size field to its sizeof first");
  }
  value.size = out->size;
  std::memcpy(out, &value, std::min(out->size, sizeof(T)));
  return SLUICE_OK;
}

// Copies a caller's struct, which may have fewer fields; those it lacks keep
// their value in `out`.
template <typename T>
int ReadVersioned(const T* in, T* out) {
  if (in == nullptr || in->size < sizeof(in->size)) {
    return BadArgument("set the struct's size field to its sizeof first");
  }
  std::memcpy(out, in, std::min(in->size, sizeof(T)));
  return SLUICE_OK;
}

bool IsDirection(int direction) {
  return direction == SLUICE_HOST_TO_GPU || direction == SLUICE_GPU_TO_HOST;
}

int BadDirection(int direction) {
  return BadArgument(fmt::format(
      "direction = {}: give SLUICE_HOST_TO_GPU ({}) or SLUICE_GPU_TO_HOST ({})",
      direction, int{SLUICE_HOST_TO_GPU}, int{SLUICE_GPU_TO_HOST}));
}

// The labels of copies, by direction.
constexpr std::array kLabels = {"copy in", "copy out"};

// Returns a copy of the text, which the caller frees with sluice_string_free.
char* NewText(const std::string& text) {
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

double Seconds(absl::Duration duration) {
  return absl::ToDoubleSeconds(duration);
}

SessionOptions Translate(const sluice_session_options& in) {
  SessionOptions out;
  if (in.socket) out.socket = in.socket;
  if (in.job) out.job = in.job;
  out.rank = sluice::Rank(in.rank);
  out.world_size = static_cast<int>(std::max(1u, in.world_size));
  out.local_ranks = static_cast<int>(std::max(1u, in.local_ranks));
  out.gpu = sluice::DeviceIndex(in.gpu);
  if (in.gpu_uuid) out.gpu_uuid = in.gpu_uuid;
  out.takes_changes = in.takes_changes != 0;
  return out;
}

sluice::StepReport Translate(const sluice_step_report& in) {
  const auto bytes = [](uint64_t n) { return Bytes(static_cast<int64_t>(n)); };
  return {.step = static_cast<int64_t>(in.step),
          .seconds = in.seconds,
          .h2d = bytes(in.host_to_gpu_bytes),
          .d2h = bytes(in.gpu_to_host_bytes),
          .stall_seconds = in.stall_seconds,
          .grant_wait_seconds = in.grant_wait_seconds,
          .hbm_peak = bytes(in.gpu_peak_bytes),
          .host_peak = bytes(in.host_peak_bytes),
          .tokens = static_cast<int64_t>(in.tokens),
          .loss = in.loss,
          .plan_mismatches = static_cast<int64_t>(in.plan_mismatches)};
}

}  // namespace

extern "C" {

const char* sluice_last_error(void) { return LastError().c_str(); }

int sluice_abi_version(void) { return SLUICE_ABI_VERSION; }

int sluice_session_open(const sluice_session_options* options,
                        sluice_session** out) {
  if (out == nullptr) return BadArgument("sluice_session_open: out is NULL");
  *out = nullptr;
  sluice_session_options known = {};
  if (options != nullptr) {
    const int status = ReadVersioned(options, &known);
    if (status != SLUICE_OK) return status;
  }
  return Guard([&] {
    auto session = Session::Open(Translate(known));
    if (!session.ok()) return Fail(session.status());
    *out = new sluice_session{*std::move(session)};
    return int{SLUICE_OK};
  });
}

void sluice_session_close(sluice_session* session) { delete session; }

int sluice_session_limits(const sluice_session* session, sluice_limits* out) {
  if (session == nullptr) return BadArgument("session is NULL");
  return Guard([&] {
    const auto limits = session->session->limits();
    return FillVersioned(
        sluice_limits{
            .size = 0,
            .gpu_total = limits.gpu_total.size(),
            .gpu_free = limits.gpu_free.size(),
            .host_total = limits.host_total.size(),
            .host_free = limits.host_free.size(),
            .granularity = limits.granularity.size(),
            .h2d_bytes_per_second = limits.h2d_bytes_per_second,
            .d2h_bytes_per_second = limits.d2h_bytes_per_second,
            .guaranteed_bytes_per_second = 0,
            .device = sluice::IsSimulated(limits.driver)
                          ? -1
                          : static_cast<int32_t>(limits.device.value()),
            .reserved = 0},
        out);
  });
}

int sluice_session_on_event(sluice_session* session,
                            sluice_event_handler handler, void* context) {
  if (session == nullptr) return BadArgument("session is NULL");
  return Guard([&] {
    if (handler == nullptr) {
      session->session->OnEvent(nullptr);
    } else {
      session->session->OnEvent([=](const SessionEvent& event) {
        handler(context, static_cast<int>(event.kind), event.detail.c_str());
      });
    }
    return int{SLUICE_OK};
  });
}

int sluice_session_plan(sluice_session* session, const char* profile,
                        double timeout, char** plan) {
  if (plan == nullptr) return BadArgument("sluice_session_plan: plan is NULL");
  *plan = nullptr;
  if (session == nullptr) return BadArgument("session is NULL");
  if (profile == nullptr) return BadArgument("profile is NULL");
  if (!(timeout >= 0)) {
    return BadArgument(
        fmt::format("timeout = {}: give 0 or more seconds", timeout));
  }
  return Guard([&] {
    const auto decoded = sluice::plan::DecodeRankProfile(profile);
    if (!decoded.ok()) return Fail(decoded.status());
    const auto solved =
        session->session->Plan(*decoded, absl::Seconds(timeout));
    if (!solved.ok()) return Fail(solved.status());
    *plan = NewText(sluice::plan::Encode(*solved));
    return int{SLUICE_OK};
  });
}

int sluice_session_changed_plan(sluice_session* session, char** plan,
                                uint64_t* id) {
  if (plan == nullptr || id == nullptr) {
    return BadArgument("sluice_session_changed_plan: plan or id is NULL");
  }
  *plan = nullptr;
  if (session == nullptr) return BadArgument("session is NULL");
  return Guard([&] {
    if (const auto changed = session->session->ChangedPlan()) {
      *plan = NewText(sluice::plan::Encode(*changed));
      *id = changed->id.value();
    }
    return int{SLUICE_OK};
  });
}

int sluice_session_answer_change(sluice_session* session, uint64_t id,
                                 int taken, const char* note) {
  if (session == nullptr) return BadArgument("session is NULL");
  return Guard([&] {
    return Return(session->session->AnswerChange(sluice::PlanId(id), taken != 0,
                                                 note ? note : ""));
  });
}

void sluice_string_free(char* text) { delete[] text; }

int sluice_session_report(sluice_session* session,
                          const sluice_step_report* report) {
  if (session == nullptr) return BadArgument("session is NULL");
  sluice_step_report known = {};
  const int status = ReadVersioned(report, &known);
  if (status != SLUICE_OK) return status;
  return Guard(
      [&] { return Return(session->session->Report(Translate(known))); });
}

int sluice_region_lease(sluice_session* session, int kind, uint64_t bytes,
                        sluice_region** out) {
  return sluice_region_lease_within(session, kind, bytes, 0, out);
}

int sluice_region_lease_within(sluice_session* session, int kind,
                               uint64_t bytes, double wait,
                               sluice_region** out) {
  if (out == nullptr) return BadArgument("sluice_region_lease: out is NULL");
  *out = nullptr;
  if (session == nullptr) return BadArgument("session is NULL");
  if (kind != SLUICE_GPU && kind != SLUICE_HOST) {
    return BadArgument(
        fmt::format("kind = {}: give SLUICE_GPU ({}) or SLUICE_HOST ({})", kind,
                    int{SLUICE_GPU}, int{SLUICE_HOST}));
  }
  if (bytes >> 60) {
    return BadArgument(
        fmt::format("a lease of {} bytes: ask for less than 2^60", bytes));
  }
  if (!(wait >= 0 && wait <= 1e6)) {
    return BadArgument(fmt::format("wait = {}: give 0 to 1e6 seconds", wait));
  }
  return Guard([&] {
    const Bytes size(static_cast<int64_t>(bytes));
    auto region = kind == SLUICE_GPU
                      ? session->session->LeaseGpu(size, absl::Seconds(wait))
                      : session->session->LeaseHost(size, absl::Seconds(wait));
    if (!region.ok()) return Fail(region.status());
    *out = new sluice_region{*std::move(region)};
    return int{SLUICE_OK};
  });
}

void sluice_region_free(sluice_region* region) { delete region; }

void* sluice_region_data(const sluice_region* region) {
  return region ? region->region->data() : nullptr;
}

uint64_t sluice_region_size(const sluice_region* region) {
  return region ? region->region->size().size() : 0;
}

int sluice_engine_start(sluice_session* session, sluice_engine** out) {
  if (out == nullptr) return BadArgument("sluice_engine_start: out is NULL");
  *out = nullptr;
  if (session == nullptr) return BadArgument("session is NULL");
  return Guard([&] {
    auto engine =
        CopyEngine::Start({.driver = &session->session->driver(),
                           .device = session->session->limits().device,
                           .gate = &session->session->grants()});
    if (!engine.ok()) return Fail(engine.status());
    *out = new sluice_engine{.engine = *std::move(engine), .tickets = {}};
    return int{SLUICE_OK};
  });
}

void sluice_engine_stop(sluice_engine* engine) { delete engine; }

int sluice_engine_copy(sluice_engine* engine, int direction, void* to,
                       const void* from, uint64_t bytes,
                       const sluice_ticket* after, size_t count,
                       sluice_ticket* out) {
  const sluice_piece piece = {.to = to, .from = from, .bytes = bytes};
  return sluice_engine_copy_pieces(engine, direction, &piece, 1, after, count,
                                   out);
}

int sluice_engine_copy_pieces(sluice_engine* engine, int direction,
                              const sluice_piece* pieces, size_t piece_count,
                              const sluice_ticket* after, size_t count,
                              sluice_ticket* out) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  if (out == nullptr) return BadArgument("a copy's out is NULL");
  if (!IsDirection(direction)) return BadDirection(direction);
  if ((piece_count && !pieces) || (count && !after)) {
    return BadArgument("a copy's pieces or after are NULL");
  }
  return Guard([&] {
    CopyRequest request;
    request.label = kLabels[direction];
    request.direction = direction == SLUICE_HOST_TO_GPU
                            ? sluice::device::CopyDirection::kHostToDevice
                            : sluice::device::CopyDirection::kDeviceToHost;
    for (const sluice_piece& piece : std::span(pieces, piece_count)) {
      if (piece.bytes >> 60 || (piece.bytes && (!piece.to || !piece.from))) {
        return BadArgument("a copy has a NULL range, or 2^60 bytes or more");
      }
      if (piece.bytes == 0) continue;
      request.pieces.push_back({static_cast<std::byte*>(piece.to),
                                static_cast<const std::byte*>(piece.from),
                                Bytes(static_cast<int64_t>(piece.bytes))});
    }
    for (const sluice_ticket ticket : std::span(after, count)) {
      request.after.push_back(engine->tickets.Find(ticket));
    }
    *out = engine->tickets.Add(engine->engine->Enqueue(std::move(request)));
    engine->tickets.DropReached();
    return int{SLUICE_OK};
  });
}

int sluice_engine_use_stream(sluice_engine* engine, void* stream) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  return Guard([&] { return Return(engine->engine->UseStream(stream)); });
}

int sluice_engine_know_slack(sluice_engine* engine, int direction,
                             double seconds) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  if (!IsDirection(direction)) return BadDirection(direction);
  if (!std::isfinite(seconds)) {
    return BadArgument(
        "sluice_engine_know_slack: seconds must be a number; below 0 says that "
        "it is not known");
  }
  return Guard([&] {
    engine->slack_seconds[direction] = seconds;
    std::vector<CopySlack> known;
    for (const int each : {SLUICE_HOST_TO_GPU, SLUICE_GPU_TO_HOST}) {
      const double slack = engine->slack_seconds[each];
      if (slack >= 0) known.push_back({kLabels[each], absl::Seconds(slack)});
    }
    engine->engine->KnowSlack(std::move(known));
    return int{SLUICE_OK};
  });
}

int sluice_engine_mark_compute(sluice_engine* engine, sluice_ticket* out) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  if (out == nullptr) {
    return BadArgument("sluice_engine_mark_compute: out is NULL");
  }
  return Guard([&] {
    engine->tickets.DropReached();
    *out = engine->tickets.Add(engine->engine->MarkCompute());
    return int{SLUICE_OK};
  });
}

int sluice_engine_wait(sluice_engine* engine, sluice_ticket ticket) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  return Guard([&] {
    return Return(engine->engine->Wait(engine->tickets.Find(ticket)));
  });
}

int sluice_engine_reached(sluice_engine* engine, sluice_ticket ticket,
                          int* reached) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  if (reached == nullptr) {
    return BadArgument("sluice_engine_reached: reached is NULL");
  }
  return Guard([&] {
    *reached = engine->tickets.Find(ticket).done();
    return int{SLUICE_OK};
  });
}

int sluice_engine_drain(sluice_engine* engine) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  return Guard([&] { return Return(engine->engine->Drain()); });
}

int sluice_engine_stats(const sluice_engine* engine, sluice_copy_stats* out) {
  if (engine == nullptr) return BadArgument("engine is NULL");
  return Guard([&] {
    const auto stats = engine->engine->stats();
    return FillVersioned(
        sluice_copy_stats{.size = 0,
                          .host_to_gpu_bytes = stats.h2d.size(),
                          .gpu_to_host_bytes = stats.d2h.size(),
                          .grant_wait_seconds = Seconds(stats.grant_wait),
                          .stall_seconds = Seconds(stats.stall)},
        out);
  });
}

int sluice_attention_kernel(const sluice_attention_block* block,
                            const char** kernel) {
  using sluice::stream::AttentionKernel;
  if (kernel == nullptr) {
    return BadArgument("sluice_attention_kernel: kernel is NULL");
  }
  return Guard([&] {
    sluice_attention_block b = {};
    if (const int bad = ReadVersioned(block, &b)) return bad;
    const std::string_view asked = b.kernel == nullptr ? "auto" : b.kernel;
    const auto* const found = std::ranges::find(
        sluice::stream::kAskedKernels, asked,
        [](AttentionKernel each) { return std::string_view(Name(each)); });
    if (found == std::end(sluice::stream::kAskedKernels)) {
      return BadArgument(fmt::format(
          "kernel = {}: give auto, flash, efficient or cudnn", asked));
    }
    const sluice::stream::AttentionBlock question = {
        .asked = *found,
        .flash = b.flash == 3   ? AttentionKernel::kFa3
                 : b.flash == 4 ? AttentionKernel::kFa4
                                : AttentionKernel::kFlash,
        .capability = b.capability,
        .element_bytes = b.element_bytes,
        .head_dim = b.head_dim,
        .value_dim = b.value_dim,
        .keys = static_cast<int64_t>(b.keys),
        .part = (b.traits & SLUICE_BLOCK_PART) != 0,
        .window = (b.traits & SLUICE_BLOCK_WINDOW) != 0,
        .intervals = (b.traits & SLUICE_BLOCK_INTERVALS) != 0,
        .softcap = (b.traits & SLUICE_BLOCK_SOFTCAP) != 0};
    const auto refusal = sluice::stream::Refusal(question);
    if (*found != AttentionKernel::kAuto && refusal.has_value()) {
      return Fail(absl::UnimplementedError(*refusal));
    }
    *kernel = Name(KernelOf(question));
    return int{SLUICE_OK};
  });
}

int sluice_chunk_choice(uint64_t least, uint64_t most, double tolerance,
                        const sluice_chunk_trial* trials, size_t count,
                        uint64_t* next, uint64_t* rows) {
  if (next == nullptr || rows == nullptr || (trials == nullptr && count > 0)) {
    return BadArgument("sluice_chunk_choice: trials, next or rows is NULL");
  }
  return Guard([&] {
    std::vector<sluice::stream::ChunkTrial> all;
    for (const sluice_chunk_trial& t : std::span(trials, count)) {
      all.push_back({static_cast<int64_t>(t.rows), t.seconds, t.host_seconds});
    }
    const auto first = static_cast<int64_t>(least);
    const auto choice = sluice::stream::ChooseChunk(
        {first, first, static_cast<int64_t>(most), tolerance}, all);
    *next = static_cast<uint64_t>(choice.next.value_or(0));
    *rows = static_cast<uint64_t>(choice.rows);
    return int{SLUICE_OK};
  });
}

}  // extern "C"
