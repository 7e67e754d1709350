# The installed CMake package: find_package(longdecode) -> longdecode::longdecode.
