# SLUICE_UNITY: compiles a target's sources eight at a time (four if they read
# torch's headers), as sources that include them. Not CMAKE_UNITY_BUILD: CMake
# 3.25 includes by absolute paths, so ccache could not serve another checkout. A
# name in two anonymous namespaces of one target is then an error: rename it for
# its subject. Sources with properties of their own are compiled separately.

# Called once, after all folders.
function(sluice_unite folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  if(folder STREQUAL CMAKE_SOURCE_DIR)
    set(targets "")  # code of others (SluiceStatic.cmake)
  endif()
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "EXECUTABLE|STATIC_LIBRARY|SHARED_LIBRARY|MODULE_LIBRARY")
      sluice_unite_target(${target})
    endif()
  endforeach()
  get_property(children DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    sluice_unite(${child})
  endforeach()
endfunction()

function(sluice_unite_target target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(precompiled ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  set(united "")
  set(united_plain "")  # SKIP_PRECOMPILE_HEADERS
  set(all "")
  foreach(source IN LISTS sources)
    get_filename_component(full ${source} ABSOLUTE BASE_DIR ${folder})
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${full})
    set(own "")
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS
            INCLUDE_DIRECTORIES SKIP_UNITY_BUILD_INCLUSION)
      get_source_file_property(value ${full} TARGET_DIRECTORY ${target}
        ${property})
      if(value)
        string(APPEND own ${value})
      endif()
    endforeach()
    get_source_file_property(plain ${full} TARGET_DIRECTORY ${target}
      SKIP_PRECOMPILE_HEADERS)
    if(own OR NOT path MATCHES "\\.cc$" OR path MATCHES "^(\\.\\.|build)/")
      list(APPEND all ${source})
    elseif(plain)
      list(APPEND united_plain ${path})
    else()
      list(APPEND united ${path})
    endif()
  endforeach()
  set(size 8)
  if("${target}/${precompiled}" MATCHES "sluice_torch")
    set(size 4)
  endif()
  sluice_batches(${target} ${size} batches ${united})
  sluice_batches(${target}_plain 8 plain_batches ${united_plain})
  set_source_files_properties(${plain_batches} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  # GCC treats an included source as a header.
  set_property(SOURCE ${batches} ${plain_batches} TARGET_DIRECTORY ${target}
    APPEND PROPERTY COMPILE_OPTIONS
    $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  set_property(TARGET ${target} PROPERTY SOURCES
    ${all} ${batches} ${plain_batches})
endfunction()

# sluice_batches(NAME SIZE OUT paths…): makes the sources that include them.
function(sluice_batches name size out)
  set(batches "")
  set(paths ${ARGN})
  while(paths)
    list(LENGTH batches number)
    list(SUBLIST paths 0 ${size} batch)
    list(REMOVE_ITEM paths ${batch})
    list(TRANSFORM batch REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN batch "" text)
    set(file ${CMAKE_BINARY_DIR}/unity/${name}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND batches ${file})
  endwhile()
  set(${out} "${batches}" PARENT_SCOPE)
endfunction()
