# SLUICE_SANITIZE=thread: compiles Abseil and protobuf with the sanitizer from
# Debian's sources. It does not see the atomics in Debian's own builds, so what
# they order (the last owner of a Status frees it) would be reported as a race.
# gRPC stays Debian's: its locks are pthread's and this Abseil's.
set(sources ${SLUICE_DEBIAN_SOURCES})
file(GLOB_RECURSE absl_sources ${sources}/absl/*.cc)
file(GLOB protobuf_sources ${sources}/google/protobuf/*.cc
  ${sources}/google/protobuf/io/*.cc ${sources}/google/protobuf/stubs/*.cc)
# Matches the file's own name only, because the folder is the user's.
set(no_library "(test|benchmark|mock|print_hash_of)[^/]*$")
list(FILTER absl_sources EXCLUDE REGEX "${no_library}")
list(FILTER protobuf_sources EXCLUDE REGEX "${no_library}")
# Leaves out sources that take a fifth of the time and that nothing here uses: a
# program that used them would fail to link.
list(FILTER absl_sources EXCLUDE REGEX "/absl/flags/")
list(FILTER protobuf_sources EXCLUDE REGEX
  "/(any|api|duration|empty|field_mask|source_context|\
struct|timestamp|type|wrappers)\\.pb\\.cc$")

add_library(sluice_instrumented STATIC ${absl_sources} ${protobuf_sources})
target_compile_options(sluice_instrumented PRIVATE
  -w -fsanitize=thread "SHELL:-idirafter ${sources}")
target_compile_definitions(sluice_instrumented PRIVATE HAVE_PTHREAD=1
  HAVE_ZLIB=1)
set_target_properties(sluice_instrumented PROPERTIES CXX_STANDARD 17)
target_link_libraries(sluice_instrumented PUBLIC ZLIB::ZLIB Threads::Threads)

set(archive ${CMAKE_CURRENT_BINARY_DIR}/libsluice_instrumented.a)
get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
list(FILTER imported INCLUDE REGEX "^absl::")
foreach(target IN LISTS imported)
  get_target_property(shared ${target} IMPORTED_LOCATION_NONE)
  if(shared)
    set_target_properties(${target} PROPERTIES
      IMPORTED_LOCATION_NONE "${archive}")
    add_dependencies(${target} sluice_instrumented)
  endif()
endforeach()
set_target_properties(protobuf::libprotobuf PROPERTIES
  IMPORTED_LOCATION "${archive}")
add_dependencies(protobuf::libprotobuf sluice_instrumented)
