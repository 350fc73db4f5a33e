// LAPACK's and BLAS's handler of wrong arguments, without libgfortran.
#include <cstdio>
#include <cstdlib>

extern "C" void xerbla_(const char* name, const int* argument,
                        size_t name_length) {
  std::fprintf(stderr, "error: %.*s: argument %d has an illegal value\n",
               static_cast<int>(name_length), name, *argument);
  std::abort();
}
