# Device code: compiled to a fatbin on every machine (nvcc needs no GPU) and
# embedded as bytes, so that nothing links to CUDA. ./dev setup installs nvcc
# from PyPI where there is no toolkit.
if(SLUICE_ENABLE_CUDA)
  find_program(SLUICE_NVCC nvcc HINTS /usr/local/cuda/bin
    ${SLUICE_PYTHON_PACKAGES}/nvidia/cu13/bin
    $ENV{HOME}/.cache/sluice/python/nvidia/cu13/bin)
  if(NOT SLUICE_NVCC)
    message(FATAL_ERROR "no nvcc: run ./dev setup, or configure with "
      "-DSLUICE_ENABLE_CUDA=OFF")
  endif()
endif()

# Compiler options of all device code; tests/ops passes the same to ptxas.
set(SLUICE_NVCC_FLAGS -std=c++20 -O3 -I${CMAKE_SOURCE_DIR})

# sluice_fatbin(OUT NAME.cu): a .cc file, in OUT, that defines
# `extern "C" const unsigned char sluice_NAME_fatbin[], …_end[]`: code for sm_80
# and sm_90, PTX for newer GPUs. The global property SLUICE_DEVICE_SOURCES lists
# every source given.
function(sluice_fatbin out source)
  get_filename_component(name ${source} NAME_WE)
  set(fatbin "${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin")
  set(embedding "${CMAKE_CURRENT_BINARY_DIR}/${name}_fatbin.cc")
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${SLUICE_NVCC} ${SLUICE_NVCC_FLAGS} -fatbin
      -gencode arch=compute_80,code=sm_80
      -gencode arch=compute_90,code=[sm_90,compute_90]
      -MD -MF ${fatbin}.d -o ${fatbin} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${source} DEPFILE ${fatbin}.d VERBATIM
    COMMENT "Compiling ${source} for sm_80 and sm_90")
  set_property(GLOBAL APPEND PROPERTY SLUICE_DEVICE_SOURCES
    ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  set(symbol "sluice_${name}_fatbin")
  file(CONFIGURE OUTPUT ${embedding} @ONLY CONTENT
"// Made by sluice_fatbin() of deploy/cmake/SluiceCuda.cmake.
asm(R\"(
.section .rodata
.balign 64
.global @symbol@
@symbol@:
.incbin \"@fatbin@\"
.global @symbol@_end
@symbol@_end:
.byte 0
.previous
)\");
")
  set_source_files_properties(${embedding} PROPERTIES OBJECT_DEPENDS ${fatbin})
  set(${out} ${embedding} PARENT_SCOPE)
endfunction()
