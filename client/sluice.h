/* libsluice: a training rank's side of the Sluice daemon, for C and for every
 * language that calls C. A session is a connection to the node's daemon.
 * Through it a rank leases GPU and pinned host memory, and copies between the
 * two as fast as the daemon's grants allow. When the process ends, in any way,
 * the daemon reclaims its leases.
 *
 * Units        sizes and offsets are bytes, times are seconds.
 * Ownership    the caller owns an object returned in `*out`. The comment of
 *              the function that returns it names the function that ends it.
 *              A region may outlive its session, but only sluice_region_free
 *              may then be called on it. Stop every engine before its session
 *              closes.
 * Errors       functions return SLUICE_OK (0) or another sluice_status. After
 *              an error `*out` is NULL or untouched, and sluice_last_error()
 *              states the reason and what to do in one line. A null handle
 *              gives SLUICE_INVALID_ARGUMENT; functions that end an object
 *              ignore NULL.
 * Threads      sessions and regions may be used from any thread. An engine
 *              belongs to one thread at a time: the one that computes.
 *              sluice_last_error() is separate for each thread.
 * Versions     a library serves callers built with the same SLUICE_ABI_VERSION
 *              or an older one. Structs start with their size, so that fields
 *              can be added at the end. A function or field marked "since 2"
 *              does not exist if sluice_abi_version() is 1.
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
  SLUICE_NOT_FOUND = 5,      /* no daemon at the socket */
  SLUICE_ALREADY_EXISTS = 6, /* this rank of the job is attached already */
  SLUICE_PERMISSION_DENIED = 7,
  SLUICE_RESOURCE_EXHAUSTED = 8, /* over budget, or the pool is empty */
  SLUICE_FAILED_PRECONDITION = 9,
  SLUICE_ABORTED = 10,
  SLUICE_OUT_OF_RANGE = 11,
  SLUICE_UNIMPLEMENTED = 12, /* not supported by the daemon or device */
  SLUICE_INTERNAL = 13,
  SLUICE_UNAVAILABLE = 14, /* daemon, peer or device is gone */
  SLUICE_DATA_LOSS = 15,
  SLUICE_UNAUTHENTICATED = 16
} sluice_status;

typedef struct sluice_session sluice_session;
typedef struct sluice_region sluice_region;
typedef struct sluice_engine sluice_engine;

/* Returns this thread's last error, or "". The text is valid until the thread
 * calls the library again. */
SLUICE_API const char* sluice_last_error(void);

/* The SLUICE_ABI_VERSION of the loaded library. */
SLUICE_API int sluice_abi_version(void);

/* --- sessions -------------------------------------------------------------*/

typedef struct sluice_session_options {
  size_t size;        /* sizeof(sluice_session_options) */
  const char* socket; /* NULL: $SLUICE_SOCKET, else /run/sluice/session.sock */
  const char* job; /* label of the job, at most 64 characters; NULL: default */
  uint32_t rank;
  uint32_t world_size;                /* ranks of the job; 0 means 1 */
  uint32_t local_ranks;               /* ranks on this node; 0 means 1 */
  uint32_t gpu;                       /* the node's GPU that this rank uses */
  double guaranteed_bytes_per_second; /* ignored since 5 */
  /* Since 2. Not 0: this rank calls sluice_session_changed_plan between its
   * steps and answers each plan. 0: the library answers "not taken". */
  uint32_t takes_changes;
  uint32_t reserved; /* 0 */
  /* Since 4. The GPU's UUID as the driver writes it ("GPU-…"), whatever
   * CUDA_VISIBLE_DEVICES is. NULL: `gpu` is used. */
  const char* gpu_uuid;
} sluice_session_options;

/* Opens a session; end it with sluice_session_close. */
SLUICE_API int sluice_session_open(const sluice_session_options* options,
                                   sluice_session** out);

/* Ends the session and returns its leases to the daemon. Calls no event handler
 * afterwards. */
SLUICE_API void sluice_session_close(sluice_session* session);

typedef struct sluice_limits {
  size_t size;                 /* in: sizeof(sluice_limits) */
  uint64_t gpu_total;          /* the pool of the session's GPU */
  uint64_t gpu_free;           /* free bytes when the session opened */
  uint64_t host_total;         /* the pinned pool of the GPU's NUMA node */
  uint64_t host_free;          /* free bytes when the session opened */
  uint64_t granularity;        /* every lease is a multiple of it */
  double h2d_bytes_per_second; /* while all GPUs copy; 0: unknown */
  double d2h_bytes_per_second;
  double guaranteed_bytes_per_second; /* since 2; since 5 always 0 */
  /* Since 2. The session's GPU by the numbering of this process's CUDA runtime,
   * which CUDA_VISIBLE_DEVICES may change. -1: the GPU is simulated, and its
   * memory is ordinary memory of the process. */
  int32_t device;
  uint32_t reserved; /* 0 */
} sluice_limits;

SLUICE_API int sluice_session_limits(const sluice_session* session,
                                     sluice_limits* out);

typedef enum sluice_event_kind {
  SLUICE_EVENT_PEER_DIED = 0, /* another rank of the job ended */
  SLUICE_EVENT_EVICTED = 1,   /* an operator ended the session's leases */
  SLUICE_EVENT_SHUTTING_DOWN = 2,
  SLUICE_EVENT_DISCONNECTED = 3, /* mappings and copies still work */
  SLUICE_EVENT_PLAN_CHANGED = 4, /* sluice_session_changed_plan returns a plan;
                                  * only in a session that takes changes */
  SLUICE_EVENT_GUARANTEE_LOWERED = 5 /* since 5 never sent */
} sluice_event_kind;

/* `detail` is valid during the call only. */
typedef void (*sluice_event_handler)(void* context, int kind,
                                     const char* detail);

/* Sets the handler of events, or none (NULL). The handler runs on the session's
 * thread and must not call any function of this library. When
 * sluice_session_on_event returns, the previous handler no longer runs. */
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

/* Since 2. Returns the newest unanswered plan that the daemon made because the
 * node's set of jobs changed, or NULL in `*plan`; does not wait. The plan is
 * for the next step boundary. Only its fractions (kept, swapped, recomputed)
 * count, and all ranks of the job must agree on the step from which they apply.
 * End `*plan` with sluice_string_free. `*id` is for the answer. */
SLUICE_API int sluice_session_changed_plan(sluice_session* session, char** plan,
                                           uint64_t* id);

/* Since 2. Answers a changed plan; does not wait for the daemon. `taken`: 0 if
 * the rank continues with its current plan. A rank that takes the plan records
 * a step with it, and calls sluice_session_plan with a profile whose "settled"
 * is true. `note` is one line for people, or NULL. */
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
  uint64_t plan_mismatches; /* allocations in this step that differ from plan */
} sluice_step_report;

/* Reports a step, for operators. Does not wait for the daemon. */
SLUICE_API int sluice_session_report(sluice_session* session,
                                     const sluice_step_report* report);

/* --- memory ---------------------------------------------------------------*/

typedef enum sluice_memory_kind {
  SLUICE_GPU = 0,
  SLUICE_HOST = 1 /* pinned, on the GPU's NUMA node */
} sluice_memory_kind;

/* Leases `bytes`, rounded up to the granularity, and maps them as one range.
 * The GPU, and for host memory also the CPU, can read and write the range. A
 * forked child does not inherit it. End it with sluice_region_free. */
SLUICE_API int sluice_region_lease(sluice_session* session, int kind,
                                   uint64_t bytes, sluice_region** out);

/* Since 5. Leases as sluice_region_lease does. If memory is short, waits at
 * most `wait` seconds, and at most the daemon's longest_wait_s, and then
 * returns SLUICE_DEADLINE_EXCEEDED. */
SLUICE_API int sluice_region_lease_within(sluice_session* session, int kind,
                                          uint64_t bytes, double wait,
                                          sluice_region** out);

/* Unmaps the range and returns its memory to the daemon. No copy may still use
 * the range. */
SLUICE_API void sluice_region_free(sluice_region* region);

SLUICE_API void* sluice_region_data(const sluice_region* region);
SLUICE_API uint64_t sluice_region_size(const sluice_region* region);

/* --- copies ---------------------------------------------------------------*/

/* Starts an engine with two copy streams; end it with sluice_engine_stop. The
 * session must outlive the engine. */
SLUICE_API int sluice_engine_start(sluice_session* session,
                                   sluice_engine** out);

/* Waits for the copies in flight and ends the engine. Its tickets are invalid
 * afterwards. */
SLUICE_API void sluice_engine_stop(sluice_engine* engine);

typedef enum sluice_direction {
  SLUICE_HOST_TO_GPU = 0,
  SLUICE_GPU_TO_HOST = 1
} sluice_direction;

/* A point on a stream of one engine. Ticket 0 counts as reached. Tickets need
 * not be freed: later copies and marks drop the reached ones. */
typedef uint64_t sluice_ticket;

/* Enqueues one copy. It runs after the earlier copies of its direction and
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

/* Since 2. Like sluice_engine_copy, for several separate `pieces`. Their one
 * ticket is reached when all pieces are copied. Small pieces share a grant. */
SLUICE_API int sluice_engine_copy_pieces(sluice_engine* engine, int direction,
                                         const sluice_piece* pieces,
                                         size_t piece_count,
                                         const sluice_ticket* after,
                                         size_t count, sluice_ticket* out);

/* Since 2. Makes the engine treat the work on `stream` as compute from now on;
 * at first a private stream of the library is compute. `stream` is a CUstream
 * of the session's GPU in its primary context (NULL: the default stream), valid
 * until the next such call or the engine's end. SLUICE_UNIMPLEMENTED on a
 * simulated GPU, where the calling thread computes. */
SLUICE_API int sluice_engine_use_stream(sluice_engine* engine, void* stream);

/* Since 3. Sets the slack of copies of `direction` that are enqueued from now
 * on: compute needs the data that such a copy brings, or the memory that it
 * frees, `seconds` after the copy could start. 0 means at once, and a negative
 * value (the default) that the slack is unknown. The daemon lends bandwidth
 * first to copies that would be late, and shows operators which copies were
 * late. Too small a value reports copies as late, too large a value gives them
 * no priority. Does not wait. */
SLUICE_API int sluice_engine_know_slack(sluice_engine* engine, int direction,
                                        double seconds);

/* Returns a ticket that is reached when all compute so far is done. Name it in
 * the `after` of the copy that moves the results. */
SLUICE_API int sluice_engine_mark_compute(sluice_engine* engine,
                                          sluice_ticket* out);

/* Compute from now on runs after the ticket is reached: on a simulated GPU this
 * call waits, on a real GPU it enqueues the wait. Returns the error of the
 * engine's first failed copy. */
SLUICE_API int sluice_engine_wait(sluice_engine* engine, sluice_ticket ticket);

/* Since 2. Sets `*reached` to 1 if the ticket is reached, else to 0. The memory
 * that its copy reads and writes may then be reused. Never waits. The ticket of
 * a failed copy is reached too; sluice_engine_wait returns the failure. */
SLUICE_API int sluice_engine_reached(sluice_engine* engine,
                                     sluice_ticket ticket, int* reached);

/* Waits until all copies are done. For the end of a run. */
SLUICE_API int sluice_engine_drain(sluice_engine* engine);

typedef struct sluice_copy_stats {
  size_t size; /* in: sizeof(sluice_copy_stats) */
  uint64_t host_to_gpu_bytes;
  uint64_t gpu_to_host_bytes;
  double grant_wait_seconds; /* time that copies waited for bandwidth */
  double stall_seconds;      /* time that compute waited for copies */
} sluice_copy_stats;

SLUICE_API int sluice_engine_stats(const sluice_engine* engine,
                                   sluice_copy_stats* out);

/* --- choices --------------------------------------------------------------*/
/* Pure functions: no session, no daemon, any thread. */

typedef enum sluice_block_trait {
  SLUICE_BLOCK_PART = 1,      /* cut at the ends of documents: a rare shape */
  SLUICE_BLOCK_WINDOW = 2,    /* each row sees a window of keys */
  SLUICE_BLOCK_INTERVALS = 4, /* each row sees a different interval of keys */
  SLUICE_BLOCK_SOFTCAP = 8    /* scores are capped */
} sluice_block_trait;

typedef struct sluice_attention_block {
  size_t size;        /* sizeof(sluice_attention_block) */
  const char* kernel; /* "flash", "efficient", "cudnn"; NULL, "auto": chosen */
  uint64_t keys;
  int32_t capability;     /* of the GPU, 9.0 as 90; 0: unknown; -1: a CPU */
  uint32_t element_bytes; /* of q, k and v; 0: they differ */
  uint32_t head_dim;      /* of q and k */
  uint32_t value_dim;     /* of v */
  uint32_t traits;        /* bitwise or of sluice_block_trait */
  /* 3 or 4: the user activated FlashAttention-3 or -4 for torch's flash
   * operators. 0: torch's built-in kernels run. */
  uint32_t flash;
} sluice_attention_block;

/* Since 6. Sets `*kernel` to the kernel that computes such a block: "flash",
 * "flash (FA3)", "flash (FA4)", "efficient", "cudnn", "flash on the CPU", or
 * "whole scores" if no kernel supports it. The text is never freed.
 * SLUICE_UNIMPLEMENTED: the requested kernel does not support the dtype or the
 * heads. SLUICE_INVALID_ARGUMENT: there is no such kernel. */
SLUICE_API int sluice_attention_kernel(const sluice_attention_block* block,
                                       const char** kernel);

/* Since 6. A measured chunk size. This layout never changes. */
typedef struct sluice_chunk_trial {
  uint64_t rows;
  double seconds;      /* for equal work at each size; infinite: does not fit */
  double host_seconds; /* the host's share of `seconds`; 0: not counted */
} sluice_chunk_trial;

/* Since 6. `trials` has the `count` sizes measured so far, in the order in
 * which `*next` named them. Sets `*next` to the chunk size to measure next (0:
 * none); sizes double from `least` to `most` rows. Sets `*rows` to the best
 * trial's rows (0: there are no trials). The candidates are the sizes at which
 * the host takes at most a third of the time. The best is the smallest
 * candidate whose time is within `tolerance` of the fastest candidate's, or the
 * largest size if there are no candidates. */
SLUICE_API int sluice_chunk_choice(uint64_t least, uint64_t most,
                                   double tolerance,
                                   const sluice_chunk_trial* trials,
                                   size_t count, uint64_t* next,
                                   uint64_t* rows);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_H_ */
