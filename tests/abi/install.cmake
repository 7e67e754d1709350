# Installs the library's component into an empty PREFIX.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX}
  --component longdecode_development COMMAND_ERROR_IS_FATAL ANY)
