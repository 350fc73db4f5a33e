/* libsluice: a training rank's side of the Sluice daemon, for C and for every
 * language that calls C. (C++: client/session/session.h and
 * client/copy/copy_engine.h.)
 *
 * A session is a connection to the node's daemon. Through it a rank leases
 * GPU and pinned host memory, which is mapped into the process, and copies
 * between the two on copy streams of its own, as fast as the daemon's grants
 * let it. When the process ends, however it does, the daemon takes all back.
 *
 * Units        sizes and offsets are bytes, times seconds.
 * Ownership    what a function gives you in `*out` is yours: end it with the
 *              function named there. A region may outlive its session, for
 *              sluice_region_free alone. An engine may not: stop every engine
 *              before its session is closed.
 * Errors       functions return SLUICE_OK (0) or another sluice_status; then
 *              `*out` is NULL or untouched, and sluice_last_error() says in
 *              one line what, which value, which limit, what to do. Null
 *              handles are SLUICE_INVALID_ARGUMENT; end functions ignore NULL.
 * Threads      sessions and regions may be used from any thread. An engine
 *              belongs to one thread at a time: the one that computes.
 *              sluice_last_error() is the calling thread's.
 * Versions     a library serves callers built with its own SLUICE_ABI_VERSION
 *              or an older one; structs start with their size, so that fields
 *              can be added at the end. What is marked "since 2" is not in a
 *              library whose sluice_abi_version() is 1.
 */
#ifndef SLUICE_H_
#define SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_ABI_VERSION 6

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

/* The numbers of absl::StatusCode. */
typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_CANCELLED = 1,
  SLUICE_UNKNOWN = 2,
  SLUICE_INVALID_ARGUMENT = 3,
  SLUICE_DEADLINE_EXCEEDED = 4,
  SLUICE_NOT_FOUND = 5,      /* no daemon at that socket */
  SLUICE_ALREADY_EXISTS = 6, /* this rank of the job is attached already */
  SLUICE_PERMISSION_DENIED = 7,
  SLUICE_RESOURCE_EXHAUSTED = 8, /* over budget, or the pool is empty */
  SLUICE_FAILED_PRECONDITION = 9,
  SLUICE_ABORTED = 10,
  SLUICE_OUT_OF_RANGE = 11,
  SLUICE_UNIMPLEMENTED = 12, /* the daemon or the device cannot */
  SLUICE_INTERNAL = 13,
  SLUICE_UNAVAILABLE = 14, /* daemon, peer or device is gone */
  SLUICE_DATA_LOSS = 15,
  SLUICE_UNAUTHENTICATED = 16
} sluice_status;

typedef struct sluice_session sluice_session;
typedef struct sluice_region sluice_region;
typedef struct sluice_engine sluice_engine;

/* The last error of this thread's last failed call; "" before one. Valid until
 * this thread's next call. */
SLUICE_API const char* sluice_last_error(void);

/* SLUICE_ABI_VERSION of the library that is loaded. */
SLUICE_API int sluice_abi_version(void);

/* --- sessions -------------------------------------------------------------*/

typedef struct sluice_session_options {
  size_t size;        /* sizeof(sluice_session_options) */
  const char* socket; /* NULL: $SLUICE_SOCKET, else /run/sluice/session.sock */
  const char* job; /* label of the job, at most 64 characters; NULL: default */
  uint32_t rank;
  uint32_t world_size;                /* ranks of the job; 0: 1 */
  uint32_t local_ranks;               /* of them on this node; 0: 1 */
  uint32_t gpu;                       /* the node's GPU that this rank uses */
  double guaranteed_bytes_per_second; /* ignored since 5 */
  /* Since 2. Not 0: this rank asks sluice_session_changed_plan between its
   * steps, and answers; the daemon waits for the answer. 0: each changed plan
   * is answered "not taken" for it. */
  uint32_t takes_changes;
  uint32_t reserved; /* 0 */
  /* Since 4. The GPU by its UUID as the driver writes it ("GPU-…"), however
   * CUDA_VISIBLE_DEVICES numbers it; NULL: `gpu`. */
  const char* gpu_uuid;
} sluice_session_options;

/* Opens a session; end it with sluice_session_close. */
SLUICE_API int sluice_session_open(const sluice_session_options* options,
                                   sluice_session** out);

/* Gives everything back to the daemon. Calls no event handler any more. */
SLUICE_API void sluice_session_close(sluice_session* session);

typedef struct sluice_limits {
  size_t size;                 /* in: sizeof(sluice_limits) */
  uint64_t gpu_total;          /* the pool of the session's GPU */
  uint64_t gpu_free;           /* when the session opened */
  uint64_t host_total;         /* the pinned pool of its NUMA node */
  uint64_t host_free;          /* when the session opened */
  uint64_t granularity;        /* leases are rounded up to a multiple of it */
  double h2d_bytes_per_second; /* of the GPU's link, contended; 0: unknown */
  double d2h_bytes_per_second;
  double guaranteed_bytes_per_second; /* since 2; since 5 always 0 */
  /* Since 2. What the CUDA runtime of this process calls the session's GPU, by
   * its UUID (CUDA_VISIBLE_DEVICES may renumber); -1: the GPU is simulated, and
   * its memory is the process's own. */
  int32_t device;
  uint32_t reserved; /* 0 */
} sluice_limits;

SLUICE_API int sluice_session_limits(const sluice_session* session,
                                     sluice_limits* out);

typedef enum sluice_event_kind {
  SLUICE_EVENT_PEER_DIED = 0, /* a rank of this job */
  SLUICE_EVENT_EVICTED = 1,   /* by the operator: leases end now */
  SLUICE_EVENT_SHUTTING_DOWN = 2,
  SLUICE_EVENT_DISCONNECTED = 3, /* daemon gone: mappings and copies go on */
  SLUICE_EVENT_PLAN_CHANGED = 4, /* sluice_session_changed_plan has one; only
                                  * in a session that takes changes */
  SLUICE_EVENT_GUARANTEE_LOWERED = 5 /* since 5 never sent */
} sluice_event_kind;

/* `detail` is valid during the call only. */
typedef void (*sluice_event_handler)(void* context, int kind,
                                     const char* detail);

/* Calls `handler` on the session's own thread, where it must not call any
 * function of this library. NULL: no handler. When this returns the former
 * handler is no longer running. */
SLUICE_API int sluice_session_on_event(sluice_session* session,
                                       sluice_event_handler handler,
                                       void* context);

/* --- plans and reports ----------------------------------------------------*/

/* Submits this rank's profile of one step and waits, at most `timeout`
 * seconds, until all local ranks of the job have submitted theirs and the
 * daemon's worker has solved. Profile and plan are the versioned JSON of
 * proto/plan. A plan whose "infeasible" is not empty is an answer, not an
 * error. End `*plan` with sluice_string_free. */
SLUICE_API int sluice_session_plan(sluice_session* session, const char* profile,
                                   double timeout, char** plan);

SLUICE_API void sluice_string_free(char* text);

/* Since 2. Jobs came or went on the node: the newest plan that this rank should
 * run by from its next step boundary on, until it is answered; `*plan` is NULL
 * where there is none. Only its fractions are meant, and only at a step that
 * all ranks of the job agree on. End `*plan` with sluice_string_free; `*id`
 * names it in the answer. Does not wait. */
SLUICE_API int sluice_session_changed_plan(sluice_session* session, char** plan,
                                           uint64_t* id);

/* Since 2. What became of it: taken (not 0), or the rank goes on with what it
 * had. A rank that took it records again and calls sluice_session_plan with a
 * settled profile. `note`: one line for people, may be NULL. Does not wait for
 * the daemon. */
SLUICE_API int sluice_session_answer_change(sluice_session* session,
                                            uint64_t id, int taken,
                                            const char* note);

typedef struct sluice_step_report {
  size_t size; /* sizeof(sluice_step_report) */
  uint64_t step;
  double seconds;
  uint64_t host_to_gpu_bytes;
  uint64_t gpu_to_host_bytes;
  double stall_seconds;
  double grant_wait_seconds;
  uint64_t gpu_peak_bytes;
  uint64_t host_peak_bytes;
  uint64_t tokens;
  double loss;              /* may be NaN */
  uint64_t plan_mismatches; /* of this step; the daemon adds up */
} sluice_step_report;

/* One step's figures, for operators. Does not wait for the daemon. */
SLUICE_API int sluice_session_report(sluice_session* session,
                                     const sluice_step_report* report);

/* --- memory ---------------------------------------------------------------*/

typedef enum sluice_memory_kind {
  SLUICE_GPU = 0,
  SLUICE_HOST = 1 /* pinned, on the GPU's NUMA node */
} sluice_memory_kind;

/* Leases `bytes`, rounded up to the granularity, and maps them as one range,
 * readable and writable by the GPU and, host memory, by the CPU. A forked
 * child does not get the range. End it with sluice_region_free. */
SLUICE_API int sluice_region_lease(sluice_session* session, int kind,
                                   uint64_t bytes, sluice_region** out);

/* Since 5. The same; where it would be refused for lack of memory, it waits for
 * `wait` seconds at most, within the daemon's longest_wait_s. Then it is
 * SLUICE_DEADLINE_EXCEEDED, which says which lease was in front. */
SLUICE_API int sluice_region_lease_within(sluice_session* session, int kind,
                                          uint64_t bytes, double wait,
                                          sluice_region** out);

/* Unmaps and gives back. No copy may use the range any more. */
SLUICE_API void sluice_region_free(sluice_region* region);

SLUICE_API void* sluice_region_data(const sluice_region* region);
SLUICE_API uint64_t sluice_region_size(const sluice_region* region);

/* --- copies ---------------------------------------------------------------*/

/* Starts the two copy streams; end it with sluice_engine_stop. The session
 * must live as long. */
SLUICE_API int sluice_engine_start(sluice_session* session,
                                   sluice_engine** out);

/* Waits for the copies in flight. Tickets of this engine end with it. */
SLUICE_API void sluice_engine_stop(sluice_engine* engine);

typedef enum sluice_direction {
  SLUICE_HOST_TO_GPU = 0,
  SLUICE_GPU_TO_HOST = 1
} sluice_direction;

/* A point on a stream, of one engine; 0 is reached already. Tickets need not
 * be given back; a ticket that was reached and dropped costs nothing. */
typedef uint64_t sluice_ticket;

/* Enqueues one copy, in order after the earlier ones of its direction and
 * after the `count` tickets in `after`. Both ranges must stay valid until
 * `*out` is reached. Does not wait. */
SLUICE_API int sluice_engine_copy(sluice_engine* engine, int direction,
                                  void* to, const void* from, uint64_t bytes,
                                  const sluice_ticket* after, size_t count,
                                  sluice_ticket* out);

/* Since 2. This layout never changes. */
typedef struct sluice_piece {
  void* to;
  const void* from;
  uint64_t bytes;
} sluice_piece;

/* Since 2. Like sluice_engine_copy, for `pieces` that lie apart: one ticket,
 * reached when all are done; small ones share a grant. */
SLUICE_API int sluice_engine_copy_pieces(sluice_engine* engine, int direction,
                                         const sluice_piece* pieces,
                                         size_t piece_count,
                                         const sluice_ticket* after,
                                         size_t count, sluice_ticket* out);

/* Since 2. Compute is what is enqueued on `stream` from now on: a CUstream of
 * the session's GPU in its primary context (torch's current stream; NULL is the
 * default stream), which must live until the next such call or the engine's
 * end. Before the first call it is a stream of the library's own.
 * SLUICE_UNIMPLEMENTED on a simulated GPU, where the calling thread computes.
 */
SLUICE_API int sluice_engine_use_stream(sluice_engine* engine, void* stream);

/* Since 3. Of copies of `direction` that are enqueued from now on: compute
 * comes to what such a copy brings, or to the memory that it leaves, `seconds`
 * after the copy could start; 0: at once. While one waits for bandwidth, the
 * daemon is told by when it is needed, lends first to copies that would be
 * late, and shows operators which were. Too short is said to be late, and too
 * long is not hurried. Below 0: not known, as it is at first. Does not wait. */
SLUICE_API int sluice_engine_know_slack(sluice_engine* engine, int direction,
                                        double seconds);

/* A ticket reached when all that was computed so far is done: put it into
 * `after` of the copy that takes results away. */
SLUICE_API int sluice_engine_mark_compute(sluice_engine* engine,
                                          sluice_ticket* out);

/* What is computed from now on comes after the ticket. On a simulated GPU
 * this waits; on a real one it enqueues the wait. Returns the first failure of
 * any copy of this engine. */
SLUICE_API int sluice_engine_wait(sluice_engine* engine, sluice_ticket ticket);

/* Since 2. `*reached`: 1 when the ticket is reached, so that what its copy
 * reads and writes may be used otherwise, else 0. Never waits. A copy that
 * failed is reached too: sluice_engine_wait tells. */
SLUICE_API int sluice_engine_reached(sluice_engine* engine,
                                     sluice_ticket ticket, int* reached);

/* Waits until all copies are done: for the end of a run. */
SLUICE_API int sluice_engine_drain(sluice_engine* engine);

typedef struct sluice_copy_stats {
  size_t size; /* in: sizeof(sluice_copy_stats) */
  uint64_t host_to_gpu_bytes;
  uint64_t gpu_to_host_bytes;
  double grant_wait_seconds; /* copies waited for bandwidth */
  double stall_seconds;      /* compute waited for copies */
} sluice_copy_stats;

SLUICE_API int sluice_engine_stats(const sluice_engine* engine,
                                   sluice_copy_stats* out);

/* --- choices --------------------------------------------------------------*/
/* Pure functions: no session, no daemon, any thread. */

typedef enum sluice_block_trait {
  SLUICE_BLOCK_PART = 1, /* of a block that documents cut: seldom seen again */
  SLUICE_BLOCK_WINDOW = 2,    /* each row sees a window of keys */
  SLUICE_BLOCK_INTERVALS = 4, /* each row sees an interval of its own */
  SLUICE_BLOCK_SOFTCAP = 8    /* scores are capped */
} sluice_block_trait;

typedef struct sluice_attention_block {
  size_t size;        /* sizeof(sluice_attention_block) */
  const char* kernel; /* "flash", "efficient", "cudnn"; NULL, "auto": chosen */
  uint64_t keys;
  int32_t capability;     /* of the GPU, 9.0 as 90; 0: not known; -1: a CPU */
  uint32_t element_bytes; /* of q, k and v; 0: they differ */
  uint32_t head_dim;      /* of q and k */
  uint32_t value_dim;     /* of v */
  uint32_t traits;        /* of sluice_block_trait, or-ed */
  /* 3, 4: torch's flash operators run FlashAttention-3 or -4, as the user has
   * activated it; 0: torch's own. */
  uint32_t flash;
} sluice_attention_block;

/* Since 6. `*kernel`: the name of the kernel that computes such a block, text
 * that is never freed: "flash", "flash (FA3)", "flash (FA4)", "efficient",
 * "cudnn", "flash on the CPU"; "whole scores": no kernel takes it.
 * SLUICE_UNIMPLEMENTED: the kernel that was asked for does not take the dtype
 * or the heads. SLUICE_INVALID_ARGUMENT: there is no such kernel. */
SLUICE_API int sluice_attention_kernel(const sluice_attention_block* block,
                                       const char** kernel);

/* Since 6. A size that was measured. This layout never changes. */
typedef struct sluice_chunk_trial {
  uint64_t rows;
  double seconds;      /* of equal work at each size; infinite: does not fit */
  double host_seconds; /* the host's own share of them; 0: not counted */
} sluice_chunk_trial;

/* Since 6. Which chunk size to measure next, doubled from `least` to `most`
 * rows
 * (`*next`; 0: none), and which of the `count` trials to take (`*rows`; 0
 * before the first): the smallest in which the host takes at most a third of
 * the time and which is slower than the fastest by the part `tolerance` at
 * most. `trials`: in the order in which `*next` named them. */
SLUICE_API int sluice_chunk_choice(uint64_t least, uint64_t most,
                                   double tolerance,
                                   const sluice_chunk_trial* trials,
                                   size_t count, uint64_t* next,
                                   uint64_t* rows);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_H_ */
