// Facts about this binary, fixed when it was built.
#ifndef LONGDECODE_TOOLS_BUILD_INFO_H_
#define LONGDECODE_TOOLS_BUILD_INFO_H_

#include <string>

namespace longdecode::tool {

struct BuildInfo {
  std::string version;  // "0.1.0"
  std::string commit;   // of the checkout, "-dirty" appended if it had changes; or "unknown"
  std::string compiler;
  bool optimized = false;
  std::string sanitizers;  // "" for none
};

BuildInfo build_info();

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_BUILD_INFO_H_
