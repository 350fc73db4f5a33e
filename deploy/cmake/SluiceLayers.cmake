# The layer table of the design: what each target is allowed to use. A link
# that is not listed (itself or through what is listed) fails at configure.
set(SLUICE_LAYER_base "")
set(SLUICE_LAYER_plan_format base)
set(SLUICE_LAYER_wire plan_format)
set(SLUICE_LAYER_admin wire)
set(SLUICE_LAYER_device base)
set(SLUICE_LAYER_ops device)
set(SLUICE_LAYER_planner plan_format)
set(SLUICE_LAYER_worker planner)
set(SLUICE_LAYER_core plan_format)
set(SLUICE_LAYER_service core wire admin device)
set(SLUICE_LAYER_metrics core)
set(SLUICE_LAYER_sluiced service metrics)
set(SLUICE_LAYER_client wire device)
set(SLUICE_LAYER_torch client ops plan_format)
set(SLUICE_LAYER_torch_cuda torch)
set(SLUICE_LAYER_train torch)
set(SLUICE_LAYER_ctl client admin planner)

# Everything `layer` may use, transitively, into `out`.
function(sluice_layer_closure layer out)
  set(closure "")
  set(queue ${SLUICE_LAYER_${layer}})
  while(queue)
    list(POP_FRONT queue next)
    if(NOT next IN_LIST closure)
      list(APPEND closure ${next})
      list(APPEND queue ${SLUICE_LAYER_${next}})
    endif()
  endwhile()
  set(${out} "${closure}" PARENT_SCOPE)
endfunction()

function(sluice_check_layer layer)
  if(NOT DEFINED SLUICE_LAYER_${layer})
    message(FATAL_ERROR "'${layer}' is not in the layer table")
  endif()
  sluice_layer_closure(${layer} allowed)
  foreach(use IN LISTS ARGN)
    if(NOT use IN_LIST allowed)
      message(FATAL_ERROR "layer '${layer}' must not use '${use}'; it may use: "
        "${allowed} (deploy/cmake/SluiceLayers.cmake)")
    endif()
  endforeach()
endfunction()

# sluice_library(NAME SOURCES … [USES layers…] [LINKS third-party…])
# Makes target sluice_NAME. Third-party links are PRIVATE unless LINKS_PUBLIC.
function(sluice_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;USES;LINKS;LINKS_PUBLIC" ${ARGN})
  sluice_check_layer(${name} ${arg_USES})
  list(TRANSFORM arg_USES PREPEND sluice_ OUTPUT_VARIABLE uses)
  add_library(sluice_${name} STATIC ${arg_SOURCES})
  add_library(sluice::${name} ALIAS sluice_${name})
  target_link_libraries(sluice_${name}
    PUBLIC sluice_options ${uses} ${arg_LINKS_PUBLIC}
    PRIVATE ${arg_LINKS})
endfunction()

# sluice_binary(NAME LAYER layer SOURCES … [USES layers…] [LINKS …])
function(sluice_binary name)
  cmake_parse_arguments(arg "" "LAYER" "SOURCES;USES;LINKS" ${ARGN})
  sluice_check_layer(${arg_LAYER} ${arg_USES})
  list(TRANSFORM arg_USES PREPEND sluice_ OUTPUT_VARIABLE uses)
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_options ${uses} ${arg_LINKS})
endfunction()

# sluice_test(NAME LABELS unit SOURCES … LINKS …): one GTest binary, one CTest
# entry a test suite file (discovery at test time keeps builds short).
function(sluice_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINKS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE
    sluice_options ${arg_LINKS} GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "SLUICE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()
