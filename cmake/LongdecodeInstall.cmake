# The shared library, and the installed CMake package:
#   find_package(longdecode [COMPONENTS static|shared]) -> longdecode::longdecode
# and longdecode.pc for the shared library.
# Everything is compiled once, with PIC and hidden visibility. `longdecode` is the static library,
# which the tests, the runner and the tools link because they use internal functions.
include(CMakePackageConfigHelpers)

option(LONGDECODE_BUILD_SHARED "Build and install the shared library beside the static one"
  ${PROJECT_IS_TOP_LEVEL})
if(BUILD_SHARED_LIBS)
  set(LONGDECODE_BUILD_SHARED ON)
elseif(LONGDECODE_SANITIZE)
  set(LONGDECODE_BUILD_SHARED OFF)
endif()

set_target_properties(longdecode PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/longdecode)
set(component longdecode_development)

install(TARGETS longdecode EXPORT longdecodeStaticTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
install(EXPORT longdecodeStaticTargets NAMESPACE longdecode::
  DESTINATION ${package_dir} COMPONENT ${component})

if(LONGDECODE_BUILD_SHARED)
  add_library(longdecode_shared SHARED $<TARGET_OBJECTS:longdecode>)
  get_target_property(dependencies longdecode LINK_LIBRARIES)
  target_link_libraries(longdecode_shared PRIVATE ${dependencies})
  target_compile_features(longdecode_shared PUBLIC cxx_std_20)
  target_include_directories(longdecode_shared INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # Instances of standard templates have default visibility; the version script hides them.
  set(version_script ${PROJECT_SOURCE_DIR}/cmake/longdecode.map)
  target_link_options(longdecode_shared PRIVATE -Wl,--version-script=${version_script})
  set_target_properties(longdecode_shared PROPERTIES
    OUTPUT_NAME longdecode EXPORT_NAME longdecode LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${version_script})
  install(TARGETS longdecode_shared EXPORT longdecodeSharedTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
    NAMELINK_COMPONENT ${component})
  install(EXPORT longdecodeSharedTargets NAMESPACE longdecode::
    DESTINATION ${package_dir} COMPONENT ${component})
  # pkg-config, relative to the file itself: the installed tree may be moved.
  set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH LONGDECODE_PC_PREFIX /${pc_dir} /)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/longdecode.pc.in
    ${PROJECT_BINARY_DIR}/longdecode.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/longdecode.pc DESTINATION ${pc_dir} COMPONENT ${component})
endif()

if(BUILD_SHARED_LIBS)
  set(LONGDECODE_DEFAULT_KIND shared)
  add_library(longdecode::longdecode ALIAS longdecode_shared)
else()
  set(LONGDECODE_DEFAULT_KIND static)
  add_library(longdecode::longdecode ALIAS longdecode)
endif()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/longdecode
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component} FILES_MATCHING PATTERN "*.h")
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/longdecodeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/longdecodeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/longdecodeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/longdecodeConfig.cmake
  ${PROJECT_BINARY_DIR}/longdecodeConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT ${component})
