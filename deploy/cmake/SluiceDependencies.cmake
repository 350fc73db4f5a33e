# Finds every third-party package once; tests/layers says where each is used.
if(SLUICE_STATIC)
  set(Protobuf_USE_STATIC_LIBS ON)
  set(ZLIB_USE_STATIC_LIBS ON)
endif()
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
# For messages: Debian's absl::string_view is not std::string_view.
find_package(fmt REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(GTest REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
if(SLUICE_STATIC OR SLUICE_SANITIZE STREQUAL "thread")
  set(default_deps "$ENV{SLUICE_DEPS}")
  if(NOT default_deps)
    set(default_deps "$ENV{HOME}/.cache/sluice")
  endif()
  set(SLUICE_DEBIAN_SOURCES "${default_deps}/debian-sources" CACHE PATH
    "sources of Debian's packages (./dev setup wheel)")
  if(NOT EXISTS "${SLUICE_DEBIAN_SOURCES}/prometheus")
    message(FATAL_ERROR "no ${SLUICE_DEBIAN_SOURCES}/prometheus: run "
      "./dev setup wheel")
  endif()
endif()
if(SLUICE_STATIC)
  include(SluiceStatic)
elseif(SLUICE_SANITIZE STREQUAL "thread")
  include(SluiceInstrumented)
endif()

# The PyPI wheel that `./dev setup` unpacks; Debian's is too old. Only
# libtorch_cpu and libc10 are linked; libtorch_cuda is opened at run time.
if(SLUICE_ENABLE_TORCH)
  if(NOT SLUICE_PYTHON_PACKAGES)
    set(SLUICE_PYTHON_PACKAGES "$ENV{HOME}/.cache/sluice/python")
  endif()
  set(torch_root "${SLUICE_PYTHON_PACKAGES}/torch")
  if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "no libtorch in ${torch_root}: run ./dev setup, or "
      "configure with -DSLUICE_ENABLE_TORCH=OFF")
  endif()
  add_library(torch_cpu INTERFACE)
  # After the system's folders: the wheel bundles fmt and protobuf headers.
  target_compile_options(torch_cpu INTERFACE
    "SHELL:-idirafter ${torch_root}/include"
    "SHELL:-idirafter ${torch_root}/include/torch/csrc/api/include")
  target_compile_definitions(torch_cpu INTERFACE
    USE_DISTRIBUTED USE_C10D_GLOO
    AT_PER_OPERATOR_HEADERS)  # narrow includes stay narrow
  file(GLOB cuda_runtime_dirs "${SLUICE_PYTHON_PACKAGES}/nvidia/*/lib")
  target_link_libraries(torch_cpu INTERFACE
    ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
  target_link_options(torch_cpu INTERFACE
    -Wl,-rpath,${torch_root}/lib -Wl,--allow-shlib-undefined)
  foreach(dir IN LISTS cuda_runtime_dirs)
    target_link_options(torch_cpu INTERFACE
      -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
  endforeach()
endif()
