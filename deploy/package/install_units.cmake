# The unit and its configuration, for the prefix that is installed to; /usr has
# its configuration in /etc. `source` and `work` are set by CMakeLists.txt.
set(bin "${CMAKE_INSTALL_PREFIX}/bin")
set(etc "${CMAKE_INSTALL_PREFIX}/etc")
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
  set(etc /etc)
endif()
configure_file("${source}/sluiced.service.in" "${work}/sluiced.service" @ONLY)
file(INSTALL "${work}/sluiced.service"
  DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/system")
file(INSTALL "${source}/sluiced.toml" DESTINATION "${etc}/sluice")
