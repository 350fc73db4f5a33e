/* A client of ABI 1, which has shorter structs. RunAbi1Client returns 0, or the
 * number of the line that failed. */
#include "tests/client/abi_1/sluice.h"

#include <string.h>

#define MUST(condition) \
  if (!(condition)) return __LINE__

int RunAbi1Client(const char* socket) {
  MUST(SLUICE_ABI_VERSION == 1 && sluice_abi_version() >= 1);
  sluice_session_options options = {.size = sizeof(options)};
  options.socket = socket;
  options.job = "abi-1";
  sluice_session* session;
  MUST(sluice_session_open(&options, &session) == SLUICE_OK);
  sluice_limits limits = {.size = sizeof(limits)};
  MUST(sluice_session_limits(session, &limits) == SLUICE_OK);
  MUST(limits.size == sizeof(limits) && limits.granularity > 0);

  sluice_region *gpu, *host;
  MUST(sluice_region_lease(session, SLUICE_GPU, 4096, &gpu) == SLUICE_OK);
  MUST(sluice_region_lease(session, SLUICE_HOST, 8192, &host) == SLUICE_OK);
  char* out = sluice_region_data(host);
  memset(out, 0x5a, 4096);
  sluice_engine* engine;
  MUST(sluice_engine_start(session, &engine) == SLUICE_OK);
  sluice_ticket mark, there, back;
  MUST(sluice_engine_mark_compute(engine, &mark) == SLUICE_OK);
  MUST(sluice_engine_copy(engine, SLUICE_HOST_TO_GPU, sluice_region_data(gpu),
                          out, 4096, &mark, 1, &there) == SLUICE_OK);
  MUST(sluice_engine_copy(engine, SLUICE_GPU_TO_HOST, out + 4096,
                          sluice_region_data(gpu), 4096, &there, 1,
                          &back) == SLUICE_OK);
  MUST(sluice_engine_wait(engine, back) == SLUICE_OK);
  MUST(sluice_engine_drain(engine) == SLUICE_OK);
  MUST(memcmp(out, out + 4096, 4096) == 0);
  sluice_copy_stats stats = {.size = sizeof(stats)};
  MUST(sluice_engine_stats(engine, &stats) == SLUICE_OK);
  MUST(stats.host_to_gpu_bytes == 4096 && stats.gpu_to_host_bytes == 4096);
  sluice_step_report report = {.size = sizeof(report), .step = 1};
  MUST(sluice_session_report(session, &report) == SLUICE_OK);

  sluice_engine_stop(engine);
  sluice_region_free(host);
  sluice_region_free(gpu);
  sluice_session_close(session);
  return 0;
}
