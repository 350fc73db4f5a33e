# SLUICE_STATIC: replaces the packages that SluiceDependencies.cmake found by
# archives, so that a program needs only glibc, libstdc++ and libgcc. Compiler
# flags stay the same, so ccache has the objects already.
#
# The linker writes a map of each program, NAME.map; deploy/wheel reads it.
add_link_options("LINKER:-Map=$<TARGET_PROPERTY:NAME>.map")

# Debian's packages name shared libraries; the archives are in the same folder.
function(sluice_archive_of shared out)
  string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${shared}")
  if(NOT EXISTS "${archive}")
    message(FATAL_ERROR "no archive beside ${shared}: it cannot be linked "
      "statically")
  endif()
  set(${out} "${archive}" PARENT_SCOPE)
endfunction()

get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
list(FILTER imported INCLUDE REGEX "^absl::")
foreach(target IN LISTS imported ITEMS gRPC::grpc++_unsecure
    gRPC::grpc_unsecure gRPC::gpr gRPC::upb gRPC::address_sorting)
  get_target_property(shared ${target} IMPORTED_LOCATION_NONE)
  if(shared)
    sluice_archive_of("${shared}" archive)
    set_target_properties(${target} PROPERTIES
      IMPORTED_LOCATION_NONE "${archive}")
  endif()
endforeach()

# gRPC's dependencies that Debian ships without CMake files.
find_library(SLUICE_CARES libcares.a REQUIRED)
find_library(SLUICE_RE2 libre2.a REQUIRED)
get_target_property(links gRPC::grpc_unsecure INTERFACE_LINK_LIBRARIES)
list(TRANSFORM links REPLACE "^c-ares::cares$" "${SLUICE_CARES}")
set_target_properties(gRPC::grpc_unsecure PROPERTIES
  INTERFACE_LINK_LIBRARIES "${links}")
# re2's compile options stay, because others would be other objects for ccache.
set_target_properties(re2::re2 PROPERTIES
  INTERFACE_LINK_LIBRARIES "${SLUICE_RE2}")

# Cbc and its dependencies. LAPACK's error handler would link libgfortran's
# whole input and output; ours does not.
add_library(sluice_archive_xerbla STATIC
  ${CMAKE_CURRENT_LIST_DIR}/archives/xerbla.cc)
set(parts sluice_archive_xerbla)
foreach(part CbcSolver Cbc Cgl OsiClp OsiCbc Clp Osi CoinUtils lapack blas
    bz2)
  find_library(SLUICE_ARCHIVE_${part} lib${part}.a REQUIRED)
  list(APPEND parts ${SLUICE_ARCHIVE_${part}})
endforeach()
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgfortran.a
  OUTPUT_VARIABLE fortran OUTPUT_STRIP_TRAILING_WHITESPACE)
set_target_properties(PkgConfig::CBC PROPERTIES INTERFACE_LINK_LIBRARIES
  "${parts};${fortran};ZLIB::ZLIB;m;Threads::Threads")

# Debian has these only as shared libraries. The whole source of the first two
# is in the headers; from prometheus-cpp the daemon uses only the text writer.
foreach(name fmt toml)
  add_library(sluice_archive_${name} STATIC
    ${CMAKE_CURRENT_LIST_DIR}/archives/${name}.cc)
  set_target_properties(sluice_archive_${name} PROPERTIES
    CXX_VISIBILITY_PRESET hidden)
endforeach()
set_target_properties(PkgConfig::TOMLPLUSPLUS PROPERTIES
  INTERFACE_LINK_LIBRARIES sluice_archive_toml)
add_library(sluice_archive_prometheus STATIC
  ${SLUICE_DEBIAN_SOURCES}/prometheus/serializer.cc
  ${SLUICE_DEBIAN_SOURCES}/prometheus/text_serializer.cc)
foreach(pair fmt::fmt=fmt prometheus-cpp::core=prometheus)
  string(REPLACE "=" ";" pair ${pair})
  list(POP_FRONT pair target)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE
    ${CMAKE_CURRENT_BINARY_DIR}/libsluice_archive_${pair}.a)
  add_dependencies(${target} sluice_archive_${pair})
endforeach()

# Debian's archives of protobuf and Abseil are compiled for programs. In a
# shared library their thread-local variables would lie in the block that glibc
# reserves, which is full once torch is loaded. So these files are compiled from
# Debian's sources for libsluice.so. The linker, or deploy/wheel/needs.py
# (STATIC_TLS), refuses the library if one is missing.
set(again
  google/protobuf/arena.cc google/protobuf/repeated_field.cc
  google/protobuf/repeated_ptr_field.cc google/protobuf/stubs/common.cc
  google/protobuf/stubs/int128.cc
  absl/base/internal/sysinfo.cc absl/base/internal/throw_delegate.cc
  absl/numeric/int128.cc absl/strings/cord.cc
  absl/strings/internal/cord_rep_btree.cc
  absl/strings/internal/cordz_functions.cc
  absl/time/internal/cctz/src/time_zone_info.cc)
list(TRANSFORM again PREPEND ${SLUICE_DEBIAN_SOURCES}/)
add_library(sluice_archive_pic STATIC ${again})
# -idirafter is only for headers that Debian does not install.
target_compile_options(sluice_archive_pic PRIVATE
  -w "SHELL:-idirafter ${SLUICE_DEBIAN_SOURCES}")
target_compile_definitions(sluice_archive_pic PRIVATE HAVE_PTHREAD=1)
set_target_properties(sluice_archive_pic PROPERTIES CXX_STANDARD 17)

# sluice_for_older_systems(TARGETS…): makes them need only glibc 2.28, like
# torch's wheels. Newer symbols come from glibc_2_28.c, and libstdc++ is linked
# in; libsluice.so exports none of it.
add_library(sluice_glibc OBJECT ${CMAKE_CURRENT_LIST_DIR}/archives/glibc_2_28.c)
add_library(sluice_glibc_start OBJECT
  ${CMAKE_CURRENT_LIST_DIR}/archives/glibc_2_28_start.c)
target_compile_options(sluice_glibc PRIVATE -fno-builtin)
function(sluice_for_older_systems)
  foreach(target IN LISTS ARGN)
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:sluice_glibc>)
    add_dependencies(${target} sluice_glibc)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)
      target_link_libraries(${target}
        PRIVATE $<TARGET_OBJECTS:sluice_glibc_start>)
      add_dependencies(${target} sluice_glibc_start)
    endif()
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc
      "LINKER:--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,\
-l:librt.so.1,--pop-state")
  endforeach()
endfunction()
