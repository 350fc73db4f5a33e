# What each target may use. A link that is not listed, directly or through
# listed layers, fails at configure.
set(SLUICE_LAYER_base "")
set(SLUICE_LAYER_cli base)
set(SLUICE_LAYER_plan_format base)
set(SLUICE_LAYER_wire plan_format)
set(SLUICE_LAYER_admin wire)
set(SLUICE_LAYER_device base)
set(SLUICE_LAYER_ops device)
set(SLUICE_LAYER_stream plan_format)
set(SLUICE_LAYER_planner plan_format stream)
set(SLUICE_LAYER_worker planner)
set(SLUICE_LAYER_quota base)
set(SLUICE_LAYER_bandwidth base)
set(SLUICE_LAYER_core plan_format quota bandwidth)
set(SLUICE_LAYER_crash base)
set(SLUICE_LAYER_state core crash)
set(SLUICE_LAYER_store base crash)
set(SLUICE_LAYER_runtime base)
set(SLUICE_LAYER_keeper store runtime cli)
set(SLUICE_LAYER_service core state store runtime wire admin device)
set(SLUICE_LAYER_metrics core)
set(SLUICE_LAYER_frozen service)
set(SLUICE_LAYER_sluiced service frozen metrics runtime cli)
set(SLUICE_LAYER_client wire device stream)
set(SLUICE_LAYER_torch client ops stream plan_format)
set(SLUICE_LAYER_torch_cuda torch)
set(SLUICE_LAYER_train torch cli)
set(SLUICE_LAYER_ctl client admin planner cli)

# Sets `out` to everything that `layer` may use, transitively.
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

# sluice_precompiled(TARGET OWNER): reuses OWNER's precompiled header, which
# saves a third of most sources' time. Does nothing for OFF (for a target that
# does not link fmt), or for an owner without such a header.
function(sluice_precompiled target owner)
  if(TARGET "${owner}")
    get_target_property(header ${owner} PRECOMPILE_HEADERS)
    if(header)
      target_precompile_headers(${target} REUSE_FROM ${owner})
    endif()
  endif()
endfunction()

# Makes the target an owner of a precompiled header.
function(sluice_precompile target header)
  target_precompile_headers(${target} PRIVATE ${header})
  # ccache compares clang's precompiled file by its bytes.
  target_compile_options(${target} PRIVATE
    "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endfunction()

# sluice_library(NAME SOURCES … [USES layers…] [LINKS third-party…]
#                [PRECOMPILED owner])
# Makes target sluice_NAME. Third-party links are PRIVATE unless LINKS_PUBLIC.
function(sluice_library name)
  cmake_parse_arguments(arg "" "PRECOMPILED" "SOURCES;USES;LINKS;LINKS_PUBLIC"
    ${ARGN})
  sluice_check_layer(${name} ${arg_USES})
  list(TRANSFORM arg_USES PREPEND sluice_ OUTPUT_VARIABLE uses)
  add_library(sluice_${name} STATIC ${arg_SOURCES})
  add_library(sluice::${name} ALIAS sluice_${name})
  target_link_libraries(sluice_${name}
    PUBLIC sluice_options ${uses} ${arg_LINKS_PUBLIC}
    PRIVATE ${arg_LINKS})
  if(NOT DEFINED arg_PRECOMPILED)
    set(arg_PRECOMPILED sluice_base)
  endif()
  sluice_precompiled(sluice_${name} ${arg_PRECOMPILED})
endfunction()

# sluice_binary(NAME LAYER layer SOURCES … [USES layers…] [LINKS …])
function(sluice_binary name)
  cmake_parse_arguments(arg "" "LAYER" "SOURCES;USES;LINKS" ${ARGN})
  sluice_check_layer(${arg_LAYER} ${arg_USES})
  list(TRANSFORM arg_USES PREPEND sluice_ OUTPUT_VARIABLE uses)
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_options ${uses} ${arg_LINKS})
  sluice_precompiled(${name} sluice_base)
endfunction()

# Finds the layer of a source folder: the longest of these that it starts with.
set(SLUICE_LAYER_FOLDERS
  proto/base=base proto/cli=cli proto/plan=plan_format proto/admin=admin
  proto=wire
  kernels/device=device kernels/ops=ops
  planner/stream=stream planner/worker=worker planner=planner
  daemon/quota=quota daemon/bandwidth=bandwidth daemon/core=core
  daemon/state=state daemon/store=store
  daemon/crash=crash daemon/runtime=runtime daemon/keeper=keeper
  daemon/service=service daemon/frozen=frozen daemon/metrics=metrics
  daemon=sluiced
  client/torch/cuda=torch_cuda client/torch=torch client/train=train
  client/ctl=ctl client=client)

function(sluice_layer_of_target target out)
  get_target_property(folder ${target} SOURCE_DIR)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${folder})
  set(best_length 0)
  set(layer "")
  # The name comes first: a parent folder may define a subfolder's targets.
  string(REGEX REPLACE "^sluice_" "" name ${target})
  if(DEFINED SLUICE_LAYER_${name})
    set(${out} ${name} PARENT_SCOPE)
    return()
  endif()
  foreach(pair IN LISTS SLUICE_LAYER_FOLDERS)
    string(REPLACE "=" ";" pair ${pair})
    list(GET pair 0 prefix)
    string(LENGTH ${prefix} length)
    string(FIND "${folder}/" "${prefix}/" at)
    if(at EQUAL 0 AND length GREATER best_length)
      list(GET pair 1 layer)
      set(best_length ${length})
    endif()
  endforeach()
  set(${out} "${layer}" PARENT_SCOPE)
endfunction()

# Finds links that bypass the functions above (target_link_libraries, LINKS
# sluice_…). Called once, after all folders but tests/, which may use
# everything.
function(sluice_check_links folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    sluice_check_links_of(${target})
  endforeach()
  get_property(children DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    if(NOT child STREQUAL "${CMAKE_SOURCE_DIR}/tests")
      sluice_check_links(${child})
    endif()
  endforeach()
endfunction()

function(sluice_check_links_of target)
  sluice_layer_of_target(${target} layer)
  get_target_property(type ${target} TYPE)
  if(NOT layer OR type STREQUAL "UTILITY")
    return()
  endif()
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  if(NOT type STREQUAL "INTERFACE_LIBRARY")
    get_target_property(private_links ${target} LINK_LIBRARIES)
    list(APPEND links ${private_links})
  endif()
  sluice_layer_closure(${layer} allowed)
  foreach(link IN LISTS links)
    string(REGEX REPLACE "^(sluice::|sluice_)" "" name "${link}")
    if(DEFINED SLUICE_LAYER_${name} AND NOT name STREQUAL link
       AND NOT name STREQUAL layer AND NOT name IN_LIST allowed)
      message(FATAL_ERROR "target '${target}' is of layer '${layer}', which "
        "must not use '${name}' (deploy/cmake/SluiceLayers.cmake)")
    endif()
  endforeach()
endfunction()
