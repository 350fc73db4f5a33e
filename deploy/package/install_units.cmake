# Installs the unit and its configuration for the prefix; with /usr the
# configuration is in /etc. CMakeLists.txt sets `source` and `work`.
set(bin "${CMAKE_INSTALL_PREFIX}/bin")
set(etc "${CMAKE_INSTALL_PREFIX}/etc")
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
  set(etc /etc)
endif()
configure_file("${source}/sluiced.service.in" "${work}/sluiced.service" @ONLY)
file(INSTALL "${work}/sluiced.service"
  DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/system")
file(INSTALL "${source}/sluiced.toml" DESTINATION "${etc}/sluice")
