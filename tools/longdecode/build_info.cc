#include "build_info.h"

#include <fmt/format.h>

#include "build_commit.h"
#include "longdecode/version.h"

namespace longdecode::tool {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "g++ " __VERSION__;
#else
constexpr const char* kCompiler = "unknown";
#endif

#ifdef __OPTIMIZE__
constexpr bool kOptimized = true;
#else
constexpr bool kOptimized = false;
#endif

#ifdef __SANITIZE_ADDRESS__
constexpr const char* kSanitizers = "address";
#else
constexpr const char* kSanitizers = "";
#endif

}  // namespace

BuildInfo build_info() {
  return {LONGDECODE_VERSION_STRING, LONGDECODE_BUILD_COMMIT, kCompiler, kOptimized, kSanitizers};
}

}  // namespace longdecode::tool
