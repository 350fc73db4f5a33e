/* Opens a session: says how much memory there is, or that there is no daemon. */
#include <sluice.h>
#include <stdio.h>

int main(void) {
  sluice_session_options options = {.size = sizeof(options), .job = "consumer"};
  sluice_limits limits = {.size = sizeof(limits)};
  sluice_session* session;
  if (sluice_session_open(&options, &session) != SLUICE_OK) {
    printf("ABI %d, no daemon: %s\n", sluice_abi_version(),
           sluice_last_error());
    return 0;
  }
  sluice_session_limits(session, &limits);
  printf("ABI %d, %llu bytes\n", sluice_abi_version(),
         (unsigned long long)limits.gpu_total);
  sluice_session_close(session);
  return 0;
}
