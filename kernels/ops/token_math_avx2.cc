#define SLUICE_INSTRUCTIONS avx2
#include "kernels/ops/token_rows.h"
