# longdecode_configure(TARGET): language level, warnings and sanitizers of one of our targets.
function(longdecode_configure target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wshadow >)
  if(LONGDECODE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  endif()
  if(LONGDECODE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${LONGDECODE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LONGDECODE_SANITIZE})
  endif()
endfunction()

# longdecode_test(NAME SOURCES... [LIBS libs...] [LABELS labels...]): one GoogleTest binary.
# It may include the library's internal headers (src/).
function(longdecode_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  longdecode_configure(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE longdecode ${arg_LIBS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Waiting threads sleep: the tests run beside each other and beside whatever the machine does.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}"
                       ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
