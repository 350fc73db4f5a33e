# cmake -DCASE=… -DEXPECT=pass|<regex of the error> -DWORK=… -DLAYERS=…
#   -DGENERATOR=… -P
# Configures the tiny project and says whether CMake answered as it must.
file(REMOVE_RECURSE ${WORK})
execute_process(
  COMMAND ${CMAKE_COMMAND} -G ${GENERATOR}
    -S ${CMAKE_CURRENT_LIST_DIR}/configure -B ${WORK}
    -DCASE=${CASE} -DLAYERS=${LAYERS}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(EXPECT STREQUAL "pass")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "case ${CASE} must configure, but: ${output}")
  endif()
elseif(status EQUAL 0)
  message(FATAL_ERROR "case ${CASE} configured; it must be refused")
elseif(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "case ${CASE}: '${EXPECT}' is not in: ${output}")
endif()
