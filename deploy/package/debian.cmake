# Four Debian packages by `cpack`, with names and relations as in Debian.
# dpkg-shlibdeps reads their dependencies from the programs.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Sluice developers <sluice@sluice.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "GPU memory service for training")
set(CPACK_COMPONENTS_ALL daemon ctl runtime dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
# The unit has absolute paths, so it is installed to /usr below $DESTDIR.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME sluice-daemon)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION
  "This is the daemon, one per node: it owns the GPU memory
 and the pinned host memory and leases them to training ranks.")
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS
  "init-system-helpers (>= 1.54), systemd")
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS "sluicectl")
set(scripts ${CMAKE_CURRENT_LIST_DIR}/debian)
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
  ${scripts}/preinst ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm
  ${scripts}/conffiles)

set(CPACK_DEBIAN_CTL_PACKAGE_NAME sluicectl)
set(CPACK_COMPONENT_CTL_DESCRIPTION
  "This is its command line: it asks a node's daemon who
 holds what, and plans at a desk without one.")
# sluicectl proves memory plans by sluice-worker, which that package has.
set(CPACK_DEBIAN_CTL_PACKAGE_SUGGESTS "sluice-daemon")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libsluice1)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
  "This is the library by which a training rank leases
 memory and copies.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA
  ${scripts}/triggers ${CMAKE_CURRENT_BINARY_DIR}/shlibs)

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libsluice-dev)
set(CPACK_COMPONENT_DEV_DESCRIPTION
  "This is what programs are built with that use
 libsluice: its header, CMake configuration and pkg-config file.")
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libsluice1 (= ${PROJECT_VERSION})")
include(CPack)
