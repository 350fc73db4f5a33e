// The start of a program with glibc 2.28 (glibc_2_28.c): until 2.34 the program
// itself, not glibc, called its constructors.
#include <stddef.h>

typedef void (*Function)(int, char**, char**);
extern Function __init_array_start[] __attribute__((visibility("hidden")));
extern Function __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);

static void Construct(int argc, char** argv, char** variables) {
  _init();
  for (Function* each = __init_array_start; each < __init_array_end; ++each) {
    (*each)(argc, argv, variables);
  }
}

int old_start(int (*main)(int, char**, char**), int argc, char** argv,
              Function construct, void (*destroy)(void),
              void (*end_loader)(void), void* stack);
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");

__attribute__((visibility("hidden"))) int __libc_start_main(
    int (*main)(int, char**, char**), int argc, char** argv, Function construct,
    void (*destroy)(void), void (*end_loader)(void), void* stack) {
  (void)construct;  // crt1.o of 2.34 passes null
  return old_start(main, argc, argv, Construct, destroy, end_loader, stack);
}
