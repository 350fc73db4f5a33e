# find_package(sluice): the target sluice::sluice.
include("${CMAKE_CURRENT_LIST_DIR}/sluice-targets.cmake")
