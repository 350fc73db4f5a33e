/* Leases GPU and host memory, copies 1 MiB to the GPU and back through the copy
 * engine, and compares the bytes:
 *     sluice-example-copy [SESSION_SOCKET]
 */
#include <stdio.h>
#include <stdlib.h>

#include "client/sluice.h"

#define SIZE (1 << 20)

static void check(int status, const char* what) {
  if (status == SLUICE_OK) return;
  fprintf(stderr, "error: %s: %s\n", what, sluice_last_error());
  exit(1);
}

static void on_event(void* context, int kind, const char* detail) {
  (void)context;
  fprintf(stderr, "event %d: %s\n", kind, detail);
}

int main(int argc, char** argv) {
  sluice_session_options options = {.size = sizeof(options)};
  options.socket = argc > 1 ? argv[1] : NULL;
  options.job = "example";
  sluice_session* session;
  check(sluice_session_open(&options, &session), "open a session");
  check(sluice_session_on_event(session, on_event, NULL), "watch events");

  /* The first half of the host region is sent; the copy returns to the second. */
  sluice_region *gpu, *host;
  check(sluice_region_lease(session, SLUICE_GPU, SIZE, &gpu), "lease GPU");
  check(sluice_region_lease(session, SLUICE_HOST, 2 * SIZE, &host),
        "lease host memory");
  unsigned char* out = sluice_region_data(host);
  unsigned char* back = out + SIZE;
  for (int i = 0; i < SIZE; ++i) out[i] = (unsigned char)(i * 31 >> 3);

  sluice_engine* engine;
  check(sluice_engine_start(session, &engine), "start the copy engine");
  sluice_ticket there, here;
  check(sluice_engine_copy(engine, SLUICE_HOST_TO_GPU, sluice_region_data(gpu),
                           out, SIZE, NULL, 0, &there), "copy to the GPU");
  check(sluice_engine_copy(engine, SLUICE_GPU_TO_HOST, back,
                           sluice_region_data(gpu), SIZE, &there, 1, &here),
        "copy back");
  check(sluice_engine_wait(engine, here), "wait");
  check(sluice_engine_drain(engine), "drain"); /* waits: the CPU reads next */

  int wrong = 0;
  for (int i = 0; i < SIZE; ++i) wrong += out[i] != back[i];
  sluice_copy_stats stats = {.size = sizeof(stats)};
  check(sluice_engine_stats(engine, &stats), "read statistics");
  printf("%d bytes went to the GPU and back, %d differ; waited %.3f s for "
         "grants\n", SIZE, wrong, stats.grant_wait_seconds);

  sluice_engine_stop(engine);
  sluice_region_free(host);
  sluice_region_free(gpu);
  sluice_session_close(session);
  return wrong != 0;
}
