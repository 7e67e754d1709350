# cmake -DSOURCE_DIR=... -DHEADER=... -P write_commit.cmake
# Writes `#define LONGDECODE_BUILD_COMMIT "<12 hex digits>[-dirty]"`, "unknown" outside a checkout.
set(commit "unknown")
find_program(git_program git)
if(git_program)
  execute_process(COMMAND ${git_program} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
      --exclude=*
    OUTPUT_VARIABLE output RESULT_VARIABLE code ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(code EQUAL 0)
    set(commit "${output}")
  endif()
endif()
set(text "#define LONGDECODE_BUILD_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${HEADER} "${text}")
endif()
