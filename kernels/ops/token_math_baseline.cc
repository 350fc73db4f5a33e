#define SLUICE_INSTRUCTIONS baseline
#include "kernels/ops/token_rows.h"
