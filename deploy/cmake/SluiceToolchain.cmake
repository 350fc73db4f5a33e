# Compiler, linker and warning settings of the tree's own targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# Line tables are enough for a backtrace, and keep objects small.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${SLUICE_CCACHE})
endif()
find_program(SLUICE_LLD ld.lld)
if(SLUICE_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# Options of the tree's own targets; headers of others are SYSTEM.
add_library(sluice_options INTERFACE)
target_compile_options(sluice_options INTERFACE
  # For programs too: a precompiled header serves only sources with its options.
  -fPIC -pthread
  # A test has many short expressions, which are a quarter of its compilation.
  $<$<AND:$<BOOL:$<TARGET_PROPERTY:SLUICE_TEST>>,$<CONFIG:RelWithDebInfo>>:-O1>
  -Wall -Wextra -Werror -Wno-missing-field-initializers
  # deploy/lint/locks.py analyses sources that no clang build compiles.
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  # GCC 12 warns wrongly about moved-from std::optional.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
# Made now, because ccache uses another name for a folder that does not exist.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
target_include_directories(sluice_options INTERFACE
  ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
if(SLUICE_SANITIZE)
  set(sanitizers_address address,undefined)
  set(sanitizers_thread thread)
  if(NOT DEFINED sanitizers_${SLUICE_SANITIZE})
    message(FATAL_ERROR "SLUICE_SANITIZE is '${SLUICE_SANITIZE}', it must be "
      "empty, address or thread")
  endif()
  # vptr takes a quarter of a source's compilation.
  target_compile_options(sluice_options INTERFACE
    -fsanitize=${sanitizers_${SLUICE_SANITIZE}} -fno-sanitize-recover=all
    -fno-sanitize=vptr -fno-omit-frame-pointer
    # A test's own expressions are half of its compilation.
    $<$<BOOL:$<TARGET_PROPERTY:SLUICE_TEST>>:-fno-sanitize=undefined>
    $<$<BOOL:$<TARGET_PROPERTY:SLUICE_TEST>>:-O0>)
  target_link_options(sluice_options INTERFACE
    -fsanitize=${sanitizers_${SLUICE_SANITIZE}})
  # A name of our own, because gcc and clang define different ones.
  target_compile_definitions(sluice_options INTERFACE SLUICE_SANITIZED=1)
endif()
if(SLUICE_FUZZ)
  target_compile_options(sluice_options INTERFACE
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:SLUICE_TEST>>>:-fsanitize=fuzzer-no-link>)
endif()
