# Every CTest entry starts through tests/run/launch.py and has a limit. Tiers
# (tests/README.md) are labels: none for `./dev test`, `ci` for what `.ci/run`
# runs besides, `deep` for `./dev test --deep` alone.
set(SLUICE_TEST_LAUNCHER ${CMAKE_SOURCE_DIR}/tests/run/launch.py)
# The limit of a test in seconds. Six tests may have up to 600.
set(SLUICE_TEST_LIMIT 300)
# The programs that those tiers need besides the default build.
add_custom_target(ci_programs)
add_custom_target(deep_programs)

# sluice_add_test(NAME name COMMAND program arguments…), as add_test. With the
# label `root`, a test runs as root where root runs the tests (else not at all).
function(sluice_add_test)
  set(name ${ARGV1})
  set(program ${ARGV3})
  # An argument may be a list, and stays one.
  set(arguments "")
  set(i 4)
  while(i LESS ARGC)
    string(REPLACE ";" "\\;" argument "${ARGV${i}}")
    list(APPEND arguments "${argument}")
    math(EXPR i "${i} + 1")
  endwhile()
  if(TARGET ${program})
    set(program $<TARGET_FILE:${program}>)
  elseif(NOT program MATCHES "^(/|\\$<)")
    message(FATAL_ERROR "${name}: ${program} is neither a target that there "
      "is already, nor a path: write $<TARGET_FILE:...>")
  endif()
  add_test(NAME ${name}
    COMMAND ${SLUICE_TEST_LAUNCHER} ${program} ${arguments})
  get_property(deferred DIRECTORY PROPERTY SLUICE_LIMITS_DEFERRED)
  if(NOT deferred)
    set_property(DIRECTORY PROPERTY SLUICE_LIMITS_DEFERRED ON)
    cmake_language(DEFER CALL sluice_limit_tests)
  endif()
endfunction()

# The launcher's limit is TIMEOUT; CTest's is a little later, for a launcher
# that fails. Called at the end of each folder with tests.
function(sluice_limit_tests)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    get_test_property(${test} TIMEOUT limit)
    get_test_property(${test} LABELS labels)
    if(NOT limit)
      set(limit ${SLUICE_TEST_LIMIT})
    endif()
    if(NOT "${labels}" MATCHES "deep|bench" AND limit GREATER SLUICE_TEST_LIMIT)
      set_property(GLOBAL APPEND PROPERTY SLUICE_LONG_TESTS ${test})
      get_property(long GLOBAL PROPERTY SLUICE_LONG_TESTS)
      list(LENGTH long count)
      if(count GREATER 6 OR limit GREATER 600)
        message(FATAL_ERROR "the limit of ${test} is ${limit} s. It may be "
          "${SLUICE_TEST_LIMIT}, or 600 for six tests; these are: ${long}")
      endif()
    endif()
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
      SLUICE_TEST_LIMIT=${limit})
    if("root" IN_LIST labels)
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT SLUICE_TEST_USER=)
    endif()
    math(EXPR limit "${limit} + 30")
    set_tests_properties(${test} PROPERTIES TIMEOUT ${limit})
  endforeach()
endfunction()

# sluice_in_tier(ci|deep TARGETS…): the default build leaves them out.
function(sluice_in_tier tier)
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  add_dependencies(${tier}_programs ${ARGN})
endfunction()

# sluice_test(NAME LABELS unit SOURCES … LINKS … [PRECOMPILED owner]): one GTest
# binary and CTest entry.
function(sluice_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;PRECOMPILED" "SOURCES;LINKS;LABELS"
    ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE
    sluice_options ${arg_LINKS} sluice_test_places GTest::gmock
    GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  set_target_properties(${name} PROPERTIES SLUICE_TEST ON)
  if(NOT DEFINED arg_PRECOMPILED)
    set(arg_PRECOMPILED sluice_test_support)
  endif()
  sluice_precompiled(${name} ${arg_PRECOMPILED})
  sluice_add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}"
    ENVIRONMENT "SLUICE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(arg_TIMEOUT)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT})
  endif()
  foreach(tier ci deep)
    if(tier IN_LIST arg_LABELS)
      sluice_in_tier(${tier} ${name})
    endif()
  endforeach()
  # `./dev sanitize` runs these, and builds only what they need.
  foreach(label sanitize races)
    if(label IN_LIST arg_LABELS)
      if(NOT TARGET ${label}_tests)
        add_custom_target(${label}_tests)
      endif()
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
  # Tests with processes and clocks use all cores, so that no other test runs.
  if("${arg_LABELS}" MATCHES "integration|bench")
    cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${cores})
  endif()
endfunction()

# sluice_test_in_part(TEST FILTER): TEST runs the cases that FILTER selects, and
# TEST_whole runs all of them with --deep.
function(sluice_test_in_part test filter)
  get_test_property(${test} ENVIRONMENT environment)
  sluice_add_test(NAME ${test}_whole COMMAND ${test})
  set_tests_properties(${test}_whole PROPERTIES LABELS deep TIMEOUT 1800
    ENVIRONMENT "${environment}")
  get_test_property(${test} PROCESSORS processors)
  if(processors)
    set_tests_properties(${test}_whole PROPERTIES PROCESSORS ${processors})
  endif()
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT GTEST_FILTER=${filter})
endfunction()

# sluice_test_calls(TEST PROGRAMS…): programs that TEST only starts. They come
# from SLUICE_TOOLS, if that names the folder of another build.
function(sluice_test_calls test)
  if(NOT SLUICE_TOOLS)
    add_dependencies(${test} ${ARGN})
    return()
  endif()
  # The folder does not exist yet when the build is configured.
  file(MAKE_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  foreach(program IN LISTS ARGN)
    file(CREATE_LINK ${SLUICE_TOOLS}/${program}
      ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} SYMBOLIC)
  endforeach()
endfunction()
