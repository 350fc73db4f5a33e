// What LAPACK and BLAS call when an argument is wrong, which is a fault of the
// caller. LAPACK's own prints through libgfortran and stops; so does this.
#include <cstdio>
#include <cstdlib>

extern "C" void xerbla_(const char* name, const int* argument,
                        size_t name_length) {
  std::fprintf(stderr, "error: %.*s: argument %d has an illegal value\n",
               static_cast<int>(name_length), name, *argument);
  std::abort();
}
