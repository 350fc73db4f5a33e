// LAPACK and BLAS call this function when an argument is wrong, which is an
// error of the caller. Like LAPACK's own function it prints a message and stops
// the program, but without libgfortran.
#include <cstdio>
#include <cstdlib>

extern "C" void xerbla_(const char* name, const int* argument,
                        size_t name_length) {
  std::fprintf(stderr, "error: %.*s: argument %d has an illegal value\n",
               static_cast<int>(name_length), name, *argument);
  std::abort();
}
