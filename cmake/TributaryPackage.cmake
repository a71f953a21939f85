# The Debian package: programs, the library with its header, units, manual pages and completion. A portable build
# needs only the system's glibc; any other needs its libraries, too. Its files are a component of the install (debian) that no other install has. `make deb`
# (scripts/make_deb.sh) packs it.

# Called once, when all targets are known.
function(tributary_package)
  # CUDA's run time is in no Debian package: one that needs no other library brings it.
  if((TRIBUTARY_HAVE_CUDA AND NOT TRIBUTARY_PORTABLE) OR NOT TARGET tributary_shared)
    file(REMOVE ${CMAKE_BINARY_DIR}/CPackConfig.cmake)
    return()
  endif()
  set(commands tributary tributary-server tributary-worker tributary-train)
  set(programs ${commands} tributary-bench)
  set(component COMPONENT debian EXCLUDE_FROM_ALL)
  set(packaging ${CMAKE_SOURCE_DIR}/packaging)
  set(documents share/doc/tributary)
  set(packages ${CMAKE_BINARY_DIR}/packages)

  install(TARGETS ${programs} RUNTIME DESTINATION bin ${component})
  install(TARGETS tributary_shared LIBRARY DESTINATION lib ${component})
  install(FILES session/tributary.h DESTINATION include ${component})
  install(FILES cmake/TributaryConfig.cmake ${packages}/TributaryConfigVersion.cmake DESTINATION lib/cmake/Tributary
    ${component})
  install(FILES ${packages}/tributary.pc DESTINATION lib/pkgconfig ${component})
  # Programs of the system's libraries look nowhere else. Portable ones bring theirs, in a folder that only they know.
  set(installed "")
  set(built "")
  foreach(program ${programs})
    string(APPEND installed " \"bin/${program}\"")
    string(APPEND built " \"$<TARGET_FILE:${program}>\"")
  endforeach()
  if(TRIBUTARY_PORTABLE)
    install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND
      \"${CMAKE_SOURCE_DIR}/scripts/collect_libraries.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/tributary\"${built})
    foreach(file${installed})
      execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND
        patchelf --force-rpath --set-rpath \$ORIGIN/../lib/tributary/lib \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${file}\")
    endforeach()" ${component})
    set(installed "")
  endif()
  install(CODE "foreach(file${installed} \"lib/$<TARGET_FILE_NAME:tributary_shared>\")
    file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${file}\")
  endforeach()" ${component})

  install(FILES ${packaging}/systemd/tributary-server.service ${packaging}/systemd/tributary-worker@.service
    DESTINATION lib/systemd/system ${component})
  install(FILES ${packaging}/systemd/tributary.sysusers DESTINATION lib/sysusers.d RENAME tributary.conf ${component})
  # A configuration is its owner's to write: examples listen where the machine can be reached.
  install(DIRECTORY DESTINATION /etc/tributary ${component})

  install(FILES README.md ${packaging}/debian/copyright DESTINATION ${documents} ${component})
  install(DIRECTORY docs/ DESTINATION ${documents} ${component})
  install(DIRECTORY configs ${packaging}/prometheus DESTINATION ${documents}/examples ${component})
  install(FILES examples/session.c DESTINATION ${documents}/examples ${component})
  if(TRIBUTARY_PORTABLE)  # of what is linked in
    install(DIRECTORY ${TRIBUTARY_PORTABLE_PARTS}/licences DESTINATION ${documents} ${component})
  endif()
  set(targets "")
  foreach(program ${commands})
    string(APPEND targets " \"$<TARGET_FILE:${program}>\"")
  endforeach()
  install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND
    \"${CMAKE_SOURCE_DIR}/scripts/write_manuals.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\"${targets})" ${component})

  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME tributary)
  set(CPACK_PACKAGE_CONTACT "Tributary maintainers <maintainers@tributary.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training through parameter servers")
  set(CPACK_PACKAGE_DESCRIPTION "Adds up the gradients of a machine's processes, sends one gradient a machine
to servers that keep the parameters and apply the optimizer, and gets the new
parameters back: exact to the bit, and alive after failures.

This package has the daemons with their systemd units, the tool `tributary`,
the built-in trainer, and the library that trainers in C link. Trainers in
Python take the wheel.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};tributary;debian;/")
  set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | systemd-sysusers")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "dataset-fashion-mnist, iperf3, iproute2")
  set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${packaging}/debian/postinst ${packaging}/debian/prerm
    ${packaging}/debian/postrm ${packaging}/debian/triggers)
  set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  include(CPack)
endfunction()
