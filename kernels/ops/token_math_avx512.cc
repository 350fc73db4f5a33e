#define SLUICE_INSTRUCTIONS avx512
#include "kernels/ops/token_rows.h"
