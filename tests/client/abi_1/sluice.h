/* FROZEN: the declarations of client/sluice.h at ABI 1, for client.c. */
#ifndef SLUICE_H_
#define SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_ABI_VERSION 1

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_CANCELLED = 1,
  SLUICE_UNKNOWN = 2,
  SLUICE_INVALID_ARGUMENT = 3,
  SLUICE_DEADLINE_EXCEEDED = 4,
  SLUICE_NOT_FOUND = 5,
  SLUICE_ALREADY_EXISTS = 6,
  SLUICE_PERMISSION_DENIED = 7,
  SLUICE_RESOURCE_EXHAUSTED = 8,
  SLUICE_FAILED_PRECONDITION = 9,
  SLUICE_ABORTED = 10,
  SLUICE_OUT_OF_RANGE = 11,
  SLUICE_UNIMPLEMENTED = 12,
  SLUICE_INTERNAL = 13,
  SLUICE_UNAVAILABLE = 14,
  SLUICE_DATA_LOSS = 15,
  SLUICE_UNAUTHENTICATED = 16
} sluice_status;

typedef struct sluice_session sluice_session;
typedef struct sluice_region sluice_region;
typedef struct sluice_engine sluice_engine;

SLUICE_API const char* sluice_last_error(void);

SLUICE_API int sluice_abi_version(void);

typedef struct sluice_session_options {
  size_t size;
  const char* socket;
  const char* job;
  uint32_t rank;
  uint32_t world_size;
  uint32_t local_ranks;
  uint32_t gpu;

  double guaranteed_bytes_per_second;
} sluice_session_options;

SLUICE_API int sluice_session_open(const sluice_session_options* options,
                                   sluice_session** out);

SLUICE_API void sluice_session_close(sluice_session* session);

typedef struct sluice_limits {
  size_t size;
  uint64_t gpu_total;
  uint64_t gpu_free;
  uint64_t host_total;
  uint64_t host_free;
  uint64_t granularity;
  double h2d_bytes_per_second;
  double d2h_bytes_per_second;
} sluice_limits;

SLUICE_API int sluice_session_limits(const sluice_session* session,
                                     sluice_limits* out);

typedef enum sluice_event_kind {
  SLUICE_EVENT_PEER_DIED = 0,
  SLUICE_EVENT_EVICTED = 1,
  SLUICE_EVENT_SHUTTING_DOWN = 2,
  SLUICE_EVENT_DISCONNECTED = 3,
  SLUICE_EVENT_PLAN_CHANGED = 4
} sluice_event_kind;

typedef void (*sluice_event_handler)(void* context, int kind,
                                     const char* detail);

SLUICE_API int sluice_session_on_event(sluice_session* session,
                                       sluice_event_handler handler,
                                       void* context);

SLUICE_API int sluice_session_plan(sluice_session* session, const char* profile,
                                   double timeout, char** plan);

SLUICE_API void sluice_string_free(char* text);

typedef struct sluice_step_report {
  size_t size;
  uint64_t step;
  double seconds;
  uint64_t host_to_gpu_bytes;
  uint64_t gpu_to_host_bytes;
  double stall_seconds;
  double grant_wait_seconds;
  uint64_t gpu_peak_bytes;
  uint64_t host_peak_bytes;
  uint64_t tokens;
  double loss;
  uint64_t plan_mismatches;
} sluice_step_report;

SLUICE_API int sluice_session_report(sluice_session* session,
                                     const sluice_step_report* report);

typedef enum sluice_memory_kind {
  SLUICE_GPU = 0,
  SLUICE_HOST = 1
} sluice_memory_kind;

SLUICE_API int sluice_region_lease(sluice_session* session, int kind,
                                   uint64_t bytes, sluice_region** out);

SLUICE_API void sluice_region_free(sluice_region* region);

SLUICE_API void* sluice_region_data(const sluice_region* region);
SLUICE_API uint64_t sluice_region_size(const sluice_region* region);

SLUICE_API int sluice_engine_start(sluice_session* session,
                                   sluice_engine** out);

SLUICE_API void sluice_engine_stop(sluice_engine* engine);

typedef enum sluice_direction {
  SLUICE_HOST_TO_GPU = 0,
  SLUICE_GPU_TO_HOST = 1
} sluice_direction;

typedef uint64_t sluice_ticket;

SLUICE_API int sluice_engine_copy(sluice_engine* engine, int direction,
                                  void* to, const void* from, uint64_t bytes,
                                  const sluice_ticket* after, size_t count,
                                  sluice_ticket* out);

SLUICE_API int sluice_engine_mark_compute(sluice_engine* engine,
                                          sluice_ticket* out);

SLUICE_API int sluice_engine_wait(sluice_engine* engine, sluice_ticket ticket);

SLUICE_API int sluice_engine_drain(sluice_engine* engine);

typedef struct sluice_copy_stats {
  size_t size;
  uint64_t host_to_gpu_bytes;
  uint64_t gpu_to_host_bytes;
  double grant_wait_seconds;
  double stall_seconds;
} sluice_copy_stats;

SLUICE_API int sluice_engine_stats(const sluice_engine* engine,
                                   sluice_copy_stats* out);

#ifdef __cplusplus
}
#endif

#endif
