// The C ABI over Session, Region and CopyEngine. No exception may cross it.
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

namespace client = sluice::client;
using sluice::Bytes;

struct sluice_session {
  std::unique_ptr<client::Session> session;
};
struct sluice_region {
  std::unique_ptr<client::Region> region;
};
struct sluice_engine {
  std::unique_ptr<client::CopyEngine> engine;
  client::TicketTable tickets;
  // Slack by direction, from sluice_engine_know_slack; negative if unknown.
  std::array<double, 2> slack_seconds = {-1, -1};
};

namespace {

using Code = absl::StatusCode;
using Kind = client::SessionEvent::Kind;

static_assert(SLUICE_EVENT_PEER_DIED == int(Kind::kPeerDied));
static_assert(SLUICE_EVENT_EVICTED == int(Kind::kEvicted));
static_assert(SLUICE_EVENT_SHUTTING_DOWN == int(Kind::kShuttingDown));
static_assert(SLUICE_EVENT_DISCONNECTED == int(Kind::kDisconnected));
static_assert(SLUICE_EVENT_PLAN_CHANGED == int(Kind::kPlanChanged));

// A shifted enumeration would differ in its first, middle or last value.
static_assert(SLUICE_CANCELLED == int(Code::kCancelled));
static_assert(SLUICE_ALREADY_EXISTS == int(Code::kAlreadyExists));
static_assert(SLUICE_UNAUTHENTICATED == int(Code::kUnauthenticated));

std::string& LastError() {
  thread_local std::string message;
  return message;
}

int Fail(const absl::Status& status) {
  LastError() = std::string(status.message());
  return static_cast<int>(status.code());
}

template <typename... Args>
absl::Status Bad(fmt::format_string<Args...> message, Args&&... args) {
  return absl::InvalidArgumentError(
      fmt::format(message, std::forward<Args>(args)...));
}

// Runs `body` and returns its status code; an exception becomes a status.
int Guard(const auto& body) {
  try {
    const absl::Status status = body();
    return status.ok() ? SLUICE_OK : Fail(status);
  } catch (const std::bad_alloc&) {
    return Fail(sluice::ShortOf(sluice::Shortage::kHostMemory,
                                "out of ordinary memory"));
  } catch (const std::exception& error) {
    return Fail(absl::InternalError(error.what()));
  }
}

int Guard(const sluice_session* session, const auto& body) {
  return session == nullptr ? Fail(Bad("session is NULL")) : Guard(body);
}

int Guard(const sluice_engine* engine, const auto& body) {
  return engine == nullptr ? Fail(Bad("engine is NULL")) : Guard(body);
}

absl::Status CheckSize(const auto* versioned) {
  if (versioned != nullptr && versioned->size >= sizeof(versioned->size)) {
    return absl::OkStatus();
  }
  return Bad("set the struct's size field to its sizeof first");
}

// Copies `value` to the caller's `out`, which may have fewer fields.
template <typename T>
absl::Status FillVersioned(T value, T* out) {
  SLUICE_RETURN_IF_ERROR(CheckSize(out));
  value.size = out->size;
  std::memcpy(out, &value, std::min(out->size, sizeof(T)));
  return absl::OkStatus();
}

// Copies the caller's `in` to `out`, except for fields that an older `in`
// lacks.
template <typename T>
absl::Status ReadVersioned(const T* in, T* out) {
  SLUICE_RETURN_IF_ERROR(CheckSize(in));
  std::memcpy(out, in, std::min(in->size, sizeof(T)));
  return absl::OkStatus();
}

absl::Status CheckDirection(int direction) {
  if (direction == SLUICE_HOST_TO_GPU || direction == SLUICE_GPU_TO_HOST) {
    return absl::OkStatus();
  }
  return Bad(
      "direction = {}: give SLUICE_HOST_TO_GPU ({}) or SLUICE_GPU_TO_HOST ({})",
      direction, int{SLUICE_HOST_TO_GPU}, int{SLUICE_GPU_TO_HOST});
}

constexpr std::array kLabels = {"copy in", "copy out"};

// Returns a copy that sluice_string_free frees.
char* NewText(const std::string& text) {
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

client::SessionOptions Translate(const sluice_session_options& in) {
  client::SessionOptions out;
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
  if (out == nullptr) return Fail(Bad("sluice_session_open: out is NULL"));
  *out = nullptr;
  return Guard([&]() -> absl::Status {
    sluice_session_options known = {};
    if (options != nullptr) {
      SLUICE_RETURN_IF_ERROR(ReadVersioned(options, &known));
    }
    SLUICE_ASSIGN_OR_RETURN(auto session,
                            client::Session::Open(Translate(known)));
    *out = new sluice_session{std::move(session)};
    return absl::OkStatus();
  });
}

void sluice_session_close(sluice_session* session) { delete session; }

int sluice_session_limits(const sluice_session* session, sluice_limits* out) {
  return Guard(session, [&] {
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
  return Guard(session, [&] {
    client::Session::EventHandler call;
    if (handler != nullptr) {
      call = [=](const client::SessionEvent& event) {
        handler(context, static_cast<int>(event.kind), event.detail.c_str());
      };
    }
    session->session->OnEvent(std::move(call));
    return absl::OkStatus();
  });
}

int sluice_session_plan(sluice_session* session, const char* profile,
                        double timeout, char** plan) {
  if (plan == nullptr) return Fail(Bad("sluice_session_plan: plan is NULL"));
  *plan = nullptr;
  return Guard(session, [&]() -> absl::Status {
    if (profile == nullptr) return Bad("profile is NULL");
    if (!(timeout >= 0)) {
      return Bad("timeout = {}: give 0 or more seconds", timeout);
    }
    SLUICE_ASSIGN_OR_RETURN(const auto decoded,
                            sluice::plan::DecodeRankProfile(profile));
    SLUICE_ASSIGN_OR_RETURN(
        const auto solved,
        session->session->Plan(decoded, absl::Seconds(timeout)));
    *plan = NewText(sluice::plan::Encode(solved));
    return absl::OkStatus();
  });
}

int sluice_session_changed_plan(sluice_session* session, char** plan,
                                uint64_t* id) {
  if (plan == nullptr || id == nullptr) {
    return Fail(Bad("sluice_session_changed_plan: plan or id is NULL"));
  }
  *plan = nullptr;
  return Guard(session, [&] {
    if (const auto changed = session->session->ChangedPlan()) {
      *plan = NewText(sluice::plan::Encode(*changed));
      *id = changed->id.value();
    }
    return absl::OkStatus();
  });
}

int sluice_session_answer_change(sluice_session* session, uint64_t id,
                                 int taken, const char* note) {
  return Guard(session, [&] {
    return session->session->AnswerChange(sluice::PlanId(id), taken != 0,
                                          note ? note : "");
  });
}

void sluice_string_free(char* text) { delete[] text; }

int sluice_session_report(sluice_session* session,
                          const sluice_step_report* report) {
  return Guard(session, [&]() -> absl::Status {
    sluice_step_report known = {};
    SLUICE_RETURN_IF_ERROR(ReadVersioned(report, &known));
    return session->session->Report(Translate(known));
  });
}

int sluice_region_lease(sluice_session* session, int kind, uint64_t bytes,
                        sluice_region** out) {
  return sluice_region_lease_within(session, kind, bytes, 0, out);
}

int sluice_region_lease_within(sluice_session* session, int kind,
                               uint64_t bytes, double wait,
                               sluice_region** out) {
  if (out == nullptr) return Fail(Bad("sluice_region_lease: out is NULL"));
  *out = nullptr;
  return Guard(session, [&]() -> absl::Status {
    if (kind != SLUICE_GPU && kind != SLUICE_HOST) {
      return Bad("kind = {}: give SLUICE_GPU ({}) or SLUICE_HOST ({})", kind,
                 int{SLUICE_GPU}, int{SLUICE_HOST});
    }
    if (bytes >> 60) {
      return Bad("a lease of {} bytes: ask for less than 2^60", bytes);
    }
    if (!(wait >= 0 && wait <= 1e6)) {
      return Bad("wait = {}: give 0 to 1e6 seconds", wait);
    }
    const Bytes size(static_cast<int64_t>(bytes));
    SLUICE_ASSIGN_OR_RETURN(
        auto region,
        kind == SLUICE_GPU
            ? session->session->LeaseGpu(size, absl::Seconds(wait))
            : session->session->LeaseHost(size, absl::Seconds(wait)));
    *out = new sluice_region{std::move(region)};
    return absl::OkStatus();
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
  if (out == nullptr) return Fail(Bad("sluice_engine_start: out is NULL"));
  *out = nullptr;
  return Guard(session, [&]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(
        auto engine,
        client::CopyEngine::Start({.driver = &session->session->driver(),
                                   .device = session->session->limits().device,
                                   .gate = &session->session->grants()}));
    *out = new sluice_engine{.engine = std::move(engine), .tickets = {}};
    return absl::OkStatus();
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
  return Guard(engine, [&]() -> absl::Status {
    if (out == nullptr) return Bad("a copy's out is NULL");
    SLUICE_RETURN_IF_ERROR(CheckDirection(direction));
    if ((piece_count && !pieces) || (count && !after)) {
      return Bad("a copy's pieces or after are NULL");
    }
    client::CopyRequest request;
    request.label = kLabels[direction];
    request.direction = direction == SLUICE_HOST_TO_GPU
                            ? sluice::device::CopyDirection::kHostToDevice
                            : sluice::device::CopyDirection::kDeviceToHost;
    for (const sluice_piece& piece : std::span(pieces, piece_count)) {
      if (piece.bytes >> 60 || (piece.bytes && (!piece.to || !piece.from))) {
        return Bad("a copy has a NULL range, or 2^60 bytes or more");
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
    return absl::OkStatus();
  });
}

int sluice_engine_use_stream(sluice_engine* engine, void* stream) {
  return Guard(engine, [&] { return engine->engine->UseStream(stream); });
}

int sluice_engine_know_slack(sluice_engine* engine, int direction,
                             double seconds) {
  return Guard(engine, [&]() -> absl::Status {
    SLUICE_RETURN_IF_ERROR(CheckDirection(direction));
    if (!std::isfinite(seconds)) {
      return Bad(
          "sluice_engine_know_slack: seconds must be a number; a negative "
          "number means that the slack is unknown");
    }
    engine->slack_seconds[direction] = seconds;
    std::vector<client::CopySlack> known;
    for (const int each : {SLUICE_HOST_TO_GPU, SLUICE_GPU_TO_HOST}) {
      const double slack = engine->slack_seconds[each];
      if (slack >= 0) known.push_back({kLabels[each], absl::Seconds(slack)});
    }
    engine->engine->KnowSlack(std::move(known));
    return absl::OkStatus();
  });
}

int sluice_engine_mark_compute(sluice_engine* engine, sluice_ticket* out) {
  return Guard(engine, [&] {
    if (out == nullptr) {
      return Bad("sluice_engine_mark_compute: out is NULL");
    }
    engine->tickets.DropReached();
    *out = engine->tickets.Add(engine->engine->MarkCompute());
    return absl::OkStatus();
  });
}

int sluice_engine_wait(sluice_engine* engine, sluice_ticket ticket) {
  return Guard(engine, [&] {
    return engine->engine->Wait(engine->tickets.Find(ticket));
  });
}

int sluice_engine_reached(sluice_engine* engine, sluice_ticket ticket,
                          int* reached) {
  return Guard(engine, [&] {
    if (reached == nullptr) {
      return Bad("sluice_engine_reached: reached is NULL");
    }
    *reached = engine->tickets.Find(ticket).done();
    return absl::OkStatus();
  });
}

int sluice_engine_drain(sluice_engine* engine) {
  return Guard(engine, [&] { return engine->engine->Drain(); });
}

int sluice_engine_stats(const sluice_engine* engine, sluice_copy_stats* out) {
  return Guard(engine, [&] {
    const auto stats = engine->engine->stats();
    return FillVersioned(
        sluice_copy_stats{
            .size = 0,
            .host_to_gpu_bytes = stats.h2d.size(),
            .gpu_to_host_bytes = stats.d2h.size(),
            .grant_wait_seconds = absl::ToDoubleSeconds(stats.grant_wait),
            .stall_seconds = absl::ToDoubleSeconds(stats.stall)},
        out);
  });
}

int sluice_attention_kernel(const sluice_attention_block* block,
                            const char** kernel) {
  using sluice::stream::AttentionKernel;
  if (kernel == nullptr) {
    return Fail(Bad("sluice_attention_kernel: kernel is NULL"));
  }
  return Guard([&]() -> absl::Status {
    sluice_attention_block b = {};
    SLUICE_RETURN_IF_ERROR(ReadVersioned(block, &b));
    const std::string_view asked = b.kernel == nullptr ? "auto" : b.kernel;
    const auto* const found = std::ranges::find(
        sluice::stream::kAskedKernels, asked,
        [](AttentionKernel each) { return std::string_view(Name(each)); });
    if (found == std::end(sluice::stream::kAskedKernels)) {
      return Bad("kernel = {}: give auto, flash, efficient or cudnn", asked);
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
      return absl::UnimplementedError(*refusal);
    }
    *kernel = Name(KernelOf(question));
    return absl::OkStatus();
  });
}

int sluice_chunk_choice(uint64_t least, uint64_t most, double tolerance,
                        const sluice_chunk_trial* trials, size_t count,
                        uint64_t* next, uint64_t* rows) {
  if (next == nullptr || rows == nullptr || (trials == nullptr && count > 0)) {
    return Fail(Bad("sluice_chunk_choice: trials, next or rows is NULL"));
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
    return absl::OkStatus();
  });
}

}  // extern "C"
